#include "models/device_flags.h"

#include "base/cli.h"

namespace elixir {

void add_device_flags(CLI::App& app, DeviceChoice& device, std::optional<uint64_t>& gpu_memory,
                      LayoutOptions& layout) {
  add_choice(app, "--device", device, kDeviceNames,
             "auto (a GPU where there is one), cpu or cuda (ranks take the node's GPUs in turn)")
      ->type_name("DEVICE");
  add_bytes(app, "--gpu-memory", gpu_memory,
            "Device memory for everything, as in 40GiB (default: all there is)")
      ->type_name("BYTES");
  add_count(app, "--chunk-numel", layout.chunk_numel,
            "Parameters a chunk (0 = chosen for the model)")
      ->type_name("N");
  add_count(app, "--rcache-blocks", layout.rcache_blocks,
            "Chunks the device holds at a time (0 = chosen, or a quarter of them)")
      ->type_name("N");
  add_count(app, "--long-blocks", layout.long_blocks,
            "Parameters longer than a chunk the device holds at a time (0 = chosen, or a quarter)")
      ->type_name("N");
}

void add_threads_flag(CLI::App& app, int& threads) {
  add_count(app, "--threads", threads,
            "Threads of a rank's operators (0 = OMP_NUM_THREADS, else the cores or the cgroup's "
            "quota, shared among the node's ranks)")
      ->type_name("N");
}

}  // namespace elixir
