#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/dynamic_library.h"

// Functions about GPUs that do not load CUDA. `root` is put before /dev, /proc and /sys; "" means
// the machine itself.
namespace elixir {

// Whether NVIDIA's driver shows a GPU: the device files exist, and CUDA_VISIBLE_DEVICES does not
// hide all (set and empty, or -1). Takes microseconds. True does not promise that CUDA can use it.
bool gpu_present(const std::string& root = "");

// The NUMA node of a PCI device; -1 if the system tells none. `pci_address` is written as by CUDA
// ("0000:C1:00.0") or as by sysfs.
int numa_node_of_pci(std::string_view pci_address, const std::string& root = "");

// The folder of libraries that were built for torch 2.`minor`, in lib/: "torch211".
std::string torch_subfolder(uint32_t minor);

// libelixir_cuda.so, which holds everything of Elixir that needs CUDA: the one for torch 2.`minor`.
// 0: for a program without LibTorch, that of the newest torch in lib/, which is in `lib` ("":
// beside the program's folder).
LibrarySearch cuda_library_search(uint32_t torch_minor, std::string lib = "");

}  // namespace elixir
