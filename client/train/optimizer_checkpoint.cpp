// Optimizer's checkpoints.

#include "base/throw_error.h"
#include "client/elixir.h"
#include "client/train/engine.h"

namespace elixir {
namespace {

[[noreturn]] void not_there_yet(const char* what) {
  throw Error(error(Code::kInvalidArgument, "{} is not there yet", what));
}

}  // namespace

Saving Optimizer::save(const std::string&, const SaveOptions&) { not_there_yet("save()"); }
LoadReport Optimizer::load(const std::string&, bool) { not_there_yet("load()"); }
const std::optional<LoadReport>& Optimizer::loaded() const {
  static const std::optional<LoadReport> none;
  return none;
}
uint64_t Optimizer::steps() const { return engine().control().step(); }
void Optimizer::ask_all(bool, bool) { not_there_yet("ask_all()"); }
std::map<std::string, ParameterState> Optimizer::state_dict() { not_there_yet("state_dict()"); }

Saving::Saving(std::shared_ptr<SaveRequest> request) : request_(std::move(request)) {}
bool Saving::done() const { return true; }
double Saving::progress() const { return 1; }
SaveReport Saving::wait() { not_there_yet("wait()"); }

void save_model(Optimizer& optimizer, const std::string& folder,
                const std::vector<std::pair<std::string, std::string>>& files) {
  SaveOptions options;
  options.optimizer_states = false;
  options.files = files;
  optimizer.save(folder, options).wait();
}

}  // namespace elixir
