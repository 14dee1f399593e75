#pragma once

// Checkpoints of which nothing but their manifest and a config.json is looked at.

#include <fcntl.h>
#include <gtest/gtest.h>

#include <string>

#include "base/fd.h"
#include "checkpoint/listing.h"
#include "checkpoint/new_folder.h"

namespace elixir {

// `parent`/step-NNNNNNNNN; its path.
inline std::string save_step(const std::string& parent, uint64_t step, const std::string& config) {
  const UniqueFd fd(::open(parent.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  Result<checkpoints::NewFolder> folder =
      checkpoints::NewFolder::create(fd.get(), checkpoints::step_name(step), "test");
  EXPECT_TRUE(folder.ok()) << folder.status().message();
  const Status written = folder->write_file("config.json", std::as_bytes(std::span(config)));
  EXPECT_TRUE(written.ok()) << written.message();
  checkpoints::Manifest manifest;
  manifest.step = step;
  const Status published = folder->publish(std::move(manifest));
  EXPECT_TRUE(published.ok()) << published.message();
  return parent + "/" + checkpoints::step_name(step);
}

}  // namespace elixir
