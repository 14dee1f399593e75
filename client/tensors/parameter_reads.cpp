#include "client/tensors/parameter_reads.h"

namespace elixir {
namespace {

thread_local NotedReads* innermost = nullptr;

}  // namespace

void ParameterReads::note(const at::Tensor& parameter) {
  const c10::VariableVersion& counter = parameter.unsafeGetTensorImpl()->version_counter();
  if (counter.enabled()) versions_.emplace_back(counter, counter.current_version());
}

std::optional<ParameterReads::Change> ParameterReads::first_change() const {
  for (const auto& [counter, was] : versions_) {
    const uint32_t is = counter.current_version();
    if (is != was) return Change{.was = was, .is = is};
  }
  return std::nullopt;
}

NotedReads::NotedReads(ParameterReads* reads) : reads_(reads), around_(innermost) {
  innermost = this;
}

NotedReads::~NotedReads() { innermost = around_; }

void NotedReads::note(const at::Tensor& parameter) {
  for (const NotedReads* scope = innermost; scope != nullptr; scope = scope->around_) {
    scope->reads_->note(parameter);
  }
}

}  // namespace elixir
