#include "ctl/doctor.h"

#include <algorithm>
#include <iostream>
#include <nlohmann/json.hpp>

#include "base/enum_names.h"
#include "base/printable.h"

namespace elixir::ctl {
namespace {

using Json = nlohmann::json;

constexpr EnumName<Severity> kSeverityNames[] = {
    {"ok", Severity::kOk}, {"note", Severity::kNote}, {"problem", Severity::kProblem}};

bool is_problem(const Finding& finding) { return finding.severity == Severity::kProblem; }

}  // namespace

std::string doctor_text(const std::vector<Finding>& findings) {
  std::string out;
  for (const Finding& finding : findings) {
    out += fmt::format("{:<8} {:<14} {}\n", name_in(kSeverityNames, finding.severity), finding.name,
                       finding.text);
    if (!finding.remedy.empty()) out += fmt::format("{:<23} -> {}\n", "", finding.remedy);
  }
  const auto problems = std::count_if(findings.begin(), findings.end(), is_problem);
  if (problems == 0) return out + "\nnothing is missing\n";
  return out + fmt::format("\n{} problem{}\n", problems, problems == 1 ? "" : "s");
}

std::string doctor_json(const std::vector<Finding>& findings, const Json& report) {
  Json list = Json::array();
  for (const Finding& finding : findings) {
    list.push_back({{"name", finding.name},
                    {"severity", name_in(kSeverityNames, finding.severity)},
                    {"verdict", name_in(kSeverityNames, finding.severity)},
                    {"text", finding.text},
                    {"remedy", finding.remedy}});
  }
  const bool ok = std::none_of(findings.begin(), findings.end(), is_problem);
  return Json{{"ok", ok}, {"findings", list}, {"gpu", report}}.dump(
             2, ' ', false, Json::error_handler_t::replace) +
         "\n";
}

int doctor_command(const DoctorOptions& options, bool json) {
  std::vector<Finding> findings = examine_host(options);
  Json report;
  for (Finding& finding : examine_gpus(options, &report)) findings.push_back(std::move(finding));
  findings.push_back(examine_machine(options));
  std::cout << (json ? doctor_json(findings, report)
                     : printable(doctor_text(findings), /*lines=*/true))
            << std::flush;
  const bool ok = std::none_of(findings.begin(), findings.end(), is_problem);
  return ok ? 0 : static_cast<int>(Code::kUnavailable);
}

}  // namespace elixir::ctl
