#pragma once

#include <ATen/Context.h>
#include <ATen/autocast_mode.h>
#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>

#include <array>
#include <mutex>
#include <vector>

// The state of LibTorch that a checkpointed region's runs have in common.

namespace elixir {

inline c10::Device device_of(const std::vector<at::Tensor>& inputs) {
  for (const at::Tensor& input : inputs) {
    if (!input.device().is_cpu()) return input.device();  // lengths and positions may be on the CPU
  }
  return at::kCPU;
}

// The states of torch's default generators: of the CPU and of one other device.
class RandomState {
 public:
  explicit RandomState(c10::Device device) : device_(device) {
    cpu_ = state_of(at::kCPU);
    if (!device_.is_cpu() && !device_.is_meta()) own_ = state_of(device_);
  }
  void restore() const {
    set_state(at::kCPU, cpu_);
    if (own_.defined()) set_state(device_, own_);
  }

 private:
  static at::Tensor state_of(c10::Device device) {
    at::Generator generator = at::globalContext().defaultGenerator(device);
    const std::lock_guard lock(generator.mutex());
    return generator.get_state();
  }
  static void set_state(c10::Device device, const at::Tensor& state) {
    at::Generator generator = at::globalContext().defaultGenerator(device);
    const std::lock_guard lock(generator.mutex());
    generator.set_state(state);
  }

  c10::Device device_;
  at::Tensor cpu_, own_;
};

// Sets the random state, and puts that of before back.
class RestoredRandom {
 public:
  RestoredRandom(const RandomState& then, c10::Device device) : now_(device) { then.restore(); }
  ~RestoredRandom() { now_.restore(); }
  RestoredRandom(const RestoredRandom&) = delete;
  RestoredRandom& operator=(const RestoredRandom&) = delete;

 private:
  const RandomState now_;
};

// Autocast's switches of this thread, for the CPU and one other device.
class AutocastState {
 public:
  explicit AutocastState(c10::Device device)
      : types_{at::kCPU, device.is_meta() ? at::kCPU : device.type()},
        cache_(at::autocast::is_autocast_cache_enabled()) {
    for (size_t i = 0; i < types_.size(); ++i) {
      enabled_[i] = at::autocast::is_autocast_enabled(types_[i]);
      dtype_[i] = at::autocast::get_autocast_dtype(types_[i]);
    }
  }
  void restore() const {
    for (size_t i = 0; i < types_.size(); ++i) {
      at::autocast::set_autocast_enabled(types_[i], enabled_[i]);
      at::autocast::set_autocast_dtype(types_[i], dtype_[i]);
    }
    at::autocast::set_autocast_cache_enabled(cache_);
  }
  bool enabled() const { return enabled_[0] || enabled_[1]; }

 private:
  std::array<at::DeviceType, 2> types_;
  std::array<bool, 2> enabled_{};
  std::array<at::ScalarType, 2> dtype_{};
  bool cache_;
};

// Runs as the region first did; afterwards this thread's autocast is as it was before. Without the
// cache of cast weights: its copies have a graph, which belongs to forward or to the second run.
class RestoredAutocast {
 public:
  RestoredAutocast(const AutocastState& then, c10::Device device) : now_(device) {
    then.restore();
    if (then.enabled()) at::autocast::set_autocast_cache_enabled(false);
  }
  ~RestoredAutocast() { now_.restore(); }
  RestoredAutocast(const RestoredAutocast&) = delete;
  RestoredAutocast& operator=(const RestoredAutocast&) = delete;

 private:
  const AutocastState now_;
};

}  // namespace elixir
