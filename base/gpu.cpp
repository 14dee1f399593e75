#include "base/gpu.h"

#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <system_error>
#include <utility>
#include <vector>

#include "base/folder_names.h"
#include "base/subprocess.h"

namespace elixir {
namespace {

// "nvidia0", not "nvidiactl" or "nvidia-uvm".
bool is_gpu_file(const std::string& name) {
  constexpr std::string_view kPrefix = "nvidia";
  return name.size() > kPrefix.size() && name.starts_with(kPrefix) &&
         std::all_of(name.begin() + kPrefix.size(), name.end(),
                     [](unsigned char c) { return std::isdigit(c) != 0; });
}

bool has_gpu_file(const std::string& folder) {
  const std::optional<std::vector<std::string>> names = folder_names(folder);
  return names && std::any_of(names->begin(), names->end(), is_gpu_file);
}

bool all_hidden() {
  const char* visible = std::getenv("CUDA_VISIBLE_DEVICES");
  return visible != nullptr && (*visible == '\0' || std::string_view(visible).starts_with("-1"));
}

// The folders of `lib` that are named for a release of torch, the newest release first.
std::vector<std::string> torch_subfolders(const std::string& lib) {
  std::vector<std::string> found = folder_names(lib).value_or(std::vector<std::string>());
  std::erase_if(found, [](const std::string& name) { return !name.starts_with("torch2"); });
  std::sort(found.begin(), found.end(), [](const std::string& a, const std::string& b) {
    return std::pair(a.size(), a) > std::pair(b.size(), b);
  });
  return found;
}

}  // namespace

bool gpu_present(const std::string& root) {
  if (all_hidden()) return false;
  std::error_code ignored;
  // Under WSL 2 the driver is Windows's and has one file for all GPUs.
  return has_gpu_file(root + "/dev") || std::filesystem::exists(root + "/dev/dxg", ignored);
}

int numa_node_of_pci(std::string_view pci_address, const std::string& root) {
  std::string address(pci_address);
  std::transform(address.begin(), address.end(), address.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  // NVIDIA's tools print a domain of eight digits, sysfs has four.
  const size_t domain_digits = address.find(':');
  if (domain_digits != std::string::npos && domain_digits > 4) address.erase(0, domain_digits - 4);
  if (address.find('/') != std::string::npos) return -1;
  std::ifstream file(root + "/sys/bus/pci/devices/" + address + "/numa_node");
  int node = -1;
  return file >> node && node >= 0 ? node : -1;
}

std::string torch_subfolder(uint32_t minor) { return "torch2" + std::to_string(minor); }

LibrarySearch cuda_library_search(uint32_t torch_minor, std::string lib) {
  if (lib.empty()) lib = program_folder() + "/../lib";
  return {.file_name = "libelixir_cuda.so",
          .variable = "ELIXIR_CUDA_LIBRARY",
          .lib_subfolders = torch_minor != 0
                                ? std::vector<std::string>{torch_subfolder(torch_minor)}
                                : torch_subfolders(lib),
          .build_path = "",  // build/lib, beside build/bin, is found as an installed one is
          .remedy =
              "build Elixir where the CUDA toolkit is (scripts/build.sh), or name the file "
              "with ELIXIR_CUDA_LIBRARY; --device cpu trains without it"};
}

}  // namespace elixir
