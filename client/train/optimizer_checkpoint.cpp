// Optimizer's checkpoints.

#include "client/elixir.h"
#include "client/train/engine.h"

namespace elixir {

Saving Optimizer::save(const std::string& folder, const SaveOptions& options) {
  return Saving(pulled_engine().save(folder, options));
}
LoadReport Optimizer::load(const std::string& folder, bool states) {
  return engine().load(folder, states);
}
const std::optional<LoadReport>& Optimizer::loaded() const { return engine().loaded(); }
uint64_t Optimizer::steps() const { return engine().steps(); }
void Optimizer::ask_all(bool save, bool stop) {
  const uint64_t asks[] = {save ? uint64_t{shm::kAskSave} : 0, stop ? uint64_t{shm::kAskStop} : 0};
  engine().control().ask(asks[0] | asks[1]);
}
std::map<std::string, ParameterState> Optimizer::state_dict() { return engine().state_dict(); }

void save_model(Optimizer& optimizer, const std::string& folder,
                const std::vector<std::pair<std::string, std::string>>& files) {
  SaveOptions options;
  options.optimizer_states = false;
  options.files = files;
  optimizer.save(folder, options).wait();
}

}  // namespace elixir
