#pragma once

#include <string>
#include <vector>

#include "base/fd.h"
#include "tests/daemon/fake_job.h"

namespace elixir::testing {

// Parts of a request for a folder.
UniqueFd open_folder(const std::string& path);
std::vector<std::vector<int64_t>> shapes_of(const std::vector<shm::ParameterPlace>& places);

// Makes a step of a job with the gradients and the record that another run had in its step
// `of_step`.
Status step_as(FakeJob& job, uint32_t step, uint32_t of_step);

}  // namespace elixir::testing
