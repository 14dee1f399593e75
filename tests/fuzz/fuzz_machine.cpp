// Machine files, with and without what a command line says in their place.

#include "planner/machine_cache.h"
#include "planner/machine_json.h"
#include "tests/fuzz/fuzz_input.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace elixir;
  fuzz::Input input(data, size);
  planner::MachineOverrides overrides;
  const uint32_t which = input.below(8);
  if ((which & 1) != 0) overrides.gpus = input.below(9);
  if ((which & 2) != 0) overrides.gpus_per_node = input.below(5);
  if ((which & 4) != 0) overrides.internode_gb_s = input.below(50);
  const Result<planner::Machine> machine = planner::machine_from_json(input.rest_text(), overrides);
  if (machine.ok()) {
    const Status checked = planner::check_machine(*machine);
    ELIXIR_CHECK(checked.ok(), "an accepted machine: {}", checked.message());
  }
  const Result<planner::ProbedMachine> probed = planner::probed_from_json(input.rest_text());
  if (probed.ok()) fuzz::check_rereads(*probed, planner::probed_from_json);
  return 0;
}
