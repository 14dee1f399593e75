#include "ctl/machine_text.h"

#include "base/units.h"

namespace elixir::ctl {
namespace {

using planner::Machine;
using planner::ProbedMachine;

// "4 x cuda (Fake 9000)"
std::string devices(const ProbedMachine& probed) {
  return fmt::format("{} x {}", probed.machine.gpus,
                     probed.device.empty() ? "device" : probed.device);
}

std::string date(const Machine& machine) {
  return machine.probed.empty() ? "without a date" : machine.probed;
}

std::string row(std::string_view name, const std::string& value) {
  return fmt::format("  {:<22} {}\n", name, value);
}

std::string gb_s(double rate) { return fmt::format("{:8.2f} GB/s", rate); }

std::string gparam_s(double rate) { return fmt::format("{:8.3f} Gparam/s", rate); }

}  // namespace

std::string machine_text(const ProbedMachine& probed) {
  const Machine& machine = probed.machine;
  std::string out = fmt::format("{}, {}: {}\n", machine.name, date(machine), devices(probed));
  out += row("device memory", format_bytes(machine.gpu_memory_bytes) + " each");
  out += row("host memory", format_bytes(machine.host_memory_bytes));
  out += row("host to device", gb_s(machine.h2d_gb_s));
  out += row("device to host", gb_s(machine.d2h_gb_s));
  out += row("both at once", gb_s(machine.joint_gb_s));
  if (machine.gpus > 1) out += row("collectives", gb_s(machine.g2g_gb_s) + " of chunks");
  out += row("host memory in place", gb_s(machine.dram_gb_s));
  out += row("update on the devices", gparam_s(machine.gpu_update_gparam_s));
  const std::vector<double>& by_trainers = machine.cpu_update_gparam_s_by_trainers;
  if (by_trainers.size() < 2) {
    out += row("update by elixird", gparam_s(machine.cpu_update_gparam_s));
  }
  for (size_t i = 0; by_trainers.size() > 1 && i < by_trainers.size(); ++i) {
    out += row(i == 0 ? "update by elixird" : "",
               fmt::format("{}, {} trainer{}", gparam_s(by_trainers[i]), i + 1, i == 0 ? "" : "s"));
  }
  out += row("matrix rate", fmt::format("{:8.2f} TFLOPS each", machine.gpu_tflops));
  if (machine.gpu_memory_gb_s > 0) {
    out += row("operators' memory", gb_s(machine.gpu_memory_gb_s) + " each");
  }
  if (machine.gpu_launch_us > 0) {
    out += row("a small operator", fmt::format("{:8.2f} us", machine.gpu_launch_us));
  }
  for (const planner::AttentionRate& rate : machine.gpu_attention_tflops) {
    out += row(fmt::format("attention, heads {}", rate.head),
               fmt::format("{:8.2f} TFLOPS forward, {:.2f} backward", rate.forward_tflops,
                           rate.backward_tflops));
  }
  if (machine.gpus > 1)
    out += "rates are those of all devices together, but those of operators and collectives\n";
  for (const std::string& note : probed.notes) out += note + "\n";
  return out;
}

std::string machine_line(const ProbedMachine& probed) {
  const Machine& machine = probed.machine;
  return fmt::format(
      "probed {}: {}; link {:.1f} GB/s to {}, {:.1f} back, {:.1f} both ways at once; memory {:.1f} "
      "GB/s in place; update {:.2f} Gparam/s by elixird, {:.2f} on the device{}; matrices {:.2f} "
      "TFLOPS each",
      date(machine), devices(probed), machine.h2d_gb_s, machine.gpus == 1 ? "it" : "them",
      machine.d2h_gb_s, machine.joint_gb_s, machine.dram_gb_s, machine.cpu_update_gparam_s,
      machine.gpu_update_gparam_s, machine.gpus == 1 ? "" : "s", machine.gpu_tflops);
}

}  // namespace elixir::ctl
