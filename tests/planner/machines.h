#pragma once

#include "planner/machine_cache.h"

namespace elixir::planner::testing {

// The development server of Elixir (arXiv 2212.05339 v2), table 4: A100 40 GB, aggregates for n
// GPUs. With `nvlink`, it is the machine of table 7, with 200 GB/s between the four GPUs.
inline Machine a100_server(uint32_t gpus, bool nvlink = false) {
  Machine machine;
  machine.gpus = gpus;
  machine.gpu_memory_bytes = uint64_t{40} << 30;
  machine.host_memory_bytes = uint64_t{500} << 30;
  machine.dram_gb_s = 200;
  machine.gpu_tflops = 185;  // fitted to table 7, like the next two: docs/planner.md
  machine.paper_parameter_ps = 8 * 2048 / 185.0;
  machine.copies_hidden = 0.25;
  switch (gpus) {
    case 1:
      machine.h2d_gb_s = 22, machine.d2h_gb_s = 16;
      machine.gpu_update_gparam_s = 50, machine.cpu_update_gparam_s = 5;
      break;
    case 2:
      machine.g2g_gb_s = 201, machine.h2d_gb_s = 50, machine.d2h_gb_s = 40;
      machine.gpu_update_gparam_s = 100, machine.cpu_update_gparam_s = 6.5;
      break;
    default:
      machine.g2g_gb_s = nvlink ? 200 : 58, machine.h2d_gb_s = 70, machine.d2h_gb_s = 60;
      machine.gpu_update_gparam_s = 200, machine.cpu_update_gparam_s = 7.5;
  }
  return machine;
}

// The result of a probe of two GPUs.
inline ProbedMachine some_probe() {
  Machine machine{{.gpus = 2,
                   .d2h_gb_s = 28.5,
                   .h2d_gb_s = 31.25,
                   .joint_gb_s = 40,
                   .g2g_gb_s = 20,
                   .gpu_update_gparam_s = 70,
                   .cpu_update_gparam_s = 2.5}};
  machine.gpu_memory_bytes = uint64_t{40} << 30;
  machine.host_memory_bytes = uint64_t{500} << 30;
  machine.dram_gb_s = 130;
  machine.gpu_tflops = 185;
  machine.cpu_update_gparam_s_by_trainers = {3, 2.5};
  machine.name = "node-1";
  machine.probed = "2031-02-03T04:05:06Z";
  return {.machine = machine,
          .device = "cuda (Fake 9000)",
          .notes = {"collectives were not measured"},
          .hardware = "Fake 9000 40.00 GiB, 16 x Some Processor, 2 NUMA nodes"};
}

}  // namespace elixir::planner::testing
