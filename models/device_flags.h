#pragma once

#include <cstdint>
#include <optional>

#include "client/plan/options.h"
#include "models/train_options.h"

namespace CLI {
class App;
}

namespace elixir {

// Flags of elixir-train and elixir-generate: the device that computes, and how much of the model
// lies there.
void add_device_flags(CLI::App& app, DeviceChoice& device, std::optional<uint64_t>& gpu_memory,
                      LayoutOptions& layout);
void add_threads_flag(CLI::App& app, int& threads);

}  // namespace elixir
