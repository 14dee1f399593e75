#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "client/elixir.h"
#include "client/exchange/exchange.h"
#include "client/plan/run_plan.h"
#include "client/session/session.h"
#include "client/train/module_parameters.h"

namespace elixir {

// The places where the values of a run's parameters lie. All functions here require that no
// operator reads a parameter during the call and that the last step is finished (Engine::finish).
struct HeldValues {
  const RunPlan& plan;
  const std::vector<ModuleParameter>& parameters;  // in the order of the plan's places
  uint32_t ranks_here;                             // ranks of this node
  Session& session;
  Exchange& exchange;
};

// Reads Shape::gathered_numel values of a trained chunk (FP32 masters), or words of a frozen one
// (exchange.h), which operators gather. All ranks.
void read_chunk(const HeldValues& held, uint32_t chunk, std::vector<float>& values);

// Throws kInvalidArgument, with the name and the remedy, where the next two functions need other
// ranks or nodes.
void require_all_here(const HeldValues& held, const char* who, uint32_t parameter);
// A parameter's values in the compute type, and the states of a trained one (`step` is 0), on the
// CPU. One rank alone may call them: they read what elixird keeps on this node, or this rank's
// device.
at::Tensor read_value(const HeldValues& held, uint32_t parameter);
ParameterState read_state(const HeldValues& held, uint32_t parameter);

// New values of some parameters. All ranks make the same one; rank 0's values count.
class NewValues {
 public:
  // Throws kInvalidArgument if the values have another shape, or no floating-point type.
  void add(const HeldValues& held, const char* who, uint32_t parameter, const at::Tensor& values);

  // Chunks that are set together, each named by the first of its run. A frozen chunk that keeps
  // some of its values has a round of its own.
  struct Round {
    std::vector<uint32_t> chunks;
    bool reads_frozen = false;
  };
  std::vector<Round> rounds(const HeldValues& held) const;

  // prepare() runs operators: it copies values that lie in chunks, and reads the frozen chunk. Then
  // call set() for the same round, between two Exchange::await_loaded().
  void prepare(const HeldValues& held, const Round& round);
  void set(const HeldValues& held, const Round& round);

  // The parameters that get new values.
  std::vector<uint32_t> parameters() const;

 private:
  void set_run(const HeldValues& held, uint32_t first);

  std::map<uint32_t, at::Tensor> values_;               // by parameter
  std::map<uint32_t, std::vector<uint32_t>> of_chunk_;  // parameters, by the first chunk of a run
  std::vector<float> kept_;  // the words of the frozen chunk of prepare()'s round; else empty
};

}  // namespace elixir
