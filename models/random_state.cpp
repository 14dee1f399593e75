#include "models/random_state.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Context.h>
#include <ATen/Functions.h>
#include <c10/util/Exception.h>

#include <cstring>
#include <mutex>
#include <optional>

namespace elixir {
namespace {

// The magic, the number of bytes of the CPU's state, and that of the device's, or 0; then both.
constexpr char kMagic[8] = {'e', 'l', 'i', 'x', 'r', 'n', 'g', '1'};
constexpr size_t kHeaderBytes = sizeof kMagic + 2 * sizeof(uint64_t);

std::string state_of(at::Generator generator) {
  const at::Tensor state = [&] {
    const std::lock_guard<std::mutex> lock(generator.mutex());
    return generator.get_state();
  }();
  return {static_cast<const char*>(state.const_data_ptr()), state.nbytes()};
}

// False: the bytes are no state of this generator.
bool set_state(at::Generator generator, std::string_view bytes) {
  const at::Tensor state =
      at::empty({static_cast<int64_t>(bytes.size())}, at::TensorOptions().dtype(at::kByte));
  std::memcpy(state.data_ptr(), bytes.data(), bytes.size());
  try {
    const std::lock_guard<std::mutex> lock(generator.mutex());
    generator.set_state(state);
    return true;
  } catch (const c10::Error&) {
    return false;
  }
}

struct States {
  std::string_view cpu, device;
};

std::optional<States> split(std::string_view bytes) {
  if (bytes.size() < kHeaderBytes || !bytes.starts_with({kMagic, sizeof kMagic})) return {};
  uint64_t sizes[2];
  std::memcpy(sizes, bytes.data() + sizeof kMagic, sizeof sizes);
  bytes.remove_prefix(kHeaderBytes);
  if (sizes[0] > bytes.size() || sizes[1] != bytes.size() - sizes[0]) return {};
  return States{bytes.substr(0, sizes[0]), bytes.substr(sizes[0])};
}

const at::Generator& generator_of(c10::Device device) {
  return at::globalContext().defaultGenerator(device);
}

}  // namespace

std::string random_state(c10::Device device) {
  const std::string cpu = state_of(at::detail::getDefaultCPUGenerator());
  const std::string on_device = device.is_cpu() ? "" : state_of(generator_of(device));
  const uint64_t sizes[2] = {cpu.size(), on_device.size()};
  std::string bytes(kMagic, sizeof kMagic);
  bytes.append(reinterpret_cast<const char*>(sizes), sizeof sizes);
  return bytes + cpu + on_device;
}

Result<bool> restore_random_state(std::string_view bytes, c10::Device device) {
  const std::optional<States> states = split(bytes);
  const auto bad = [] {
    return error(Code::kBadInput,
                 "a rank's random numbers (user/rank-R.bin) are not those that "
                 "elixir-train wrote");
  };
  if (!states) return bad();
  const at::Generator& cpu = at::detail::getDefaultCPUGenerator();
  const std::string before = state_of(cpu);
  if (!set_state(cpu, states->cpu)) return bad();
  if (device.is_cpu()) return true;
  if (states->device.empty()) return false;
  if (set_state(generator_of(device), states->device)) return true;
  set_state(cpu, before);
  return bad();
}

}  // namespace elixir
