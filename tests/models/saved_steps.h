#pragma once

// Checkpoints for tests that read only their manifest and config.json.

#include <fcntl.h>

#include <optional>
#include <string>
#include <utility>

#include "base/fd.h"
#include "checkpoint/listing.h"
#include "checkpoint/new_folder.h"
#include "tests/support/matchers.h"

namespace elixir {

// Saves `parent`/step-NNNNNNNNN and returns its path.
inline std::string save_step(const std::string& parent, uint64_t step, const std::string& config,
                             bool optimizer_states = true,
                             std::optional<checkpoints::Health> health = {},
                             const std::string& program = "") {
  const UniqueFd fd(::open(parent.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  Result<checkpoints::NewFolder> folder =
      checkpoints::NewFolder::create(fd.get(), checkpoints::step_name(step), step, "test");
  EXPECT_TRUE(folder.ok()) << folder.status().message();
  // One tensor of one number: a folder without any is no model.
  std::string header = R"({"x":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})";
  header.resize((header.size() + 7) / 8 * 8, ' ');
  const std::string tensors = std::string(1, static_cast<char>(header.size())) +
                              std::string(7, '\0') + header + std::string(4, '\0');
  for (const auto& [name, text] :
       {std::pair("config.json", config), std::pair("model.safetensors", tensors)}) {
    must(folder->write_file(name, std::as_bytes(std::span(text))));
  }
  checkpoints::Manifest manifest;
  manifest.step = step;
  manifest.optimizer_states = optimizer_states;
  manifest.health = health;
  manifest.program = program;
  must(folder->publish(std::move(manifest)));
  return parent + "/" + checkpoints::step_name(step);
}

}  // namespace elixir
