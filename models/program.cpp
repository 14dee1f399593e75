#include "models/program.h"

#include <ATen/Parallel.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <iostream>

#include "base/error.h"
#include "base/gpu.h"
#include "base/printable.h"
#include "base/run_main.h"
#include "base/spare_threads.h"
#include "base/throw_error.h"
#include "client/ranks/compute_threads.h"
#include "client/ranks/openmp_wait.h"

namespace elixir {

const char* device_of(DeviceChoice choice) {
  const bool cuda =
      choice == DeviceChoice::kCuda || (choice == DeviceChoice::kAuto && gpu_present());
  return cuda ? "cuda" : "cpu";
}

void use_threads(int threads, uint32_t ranks) {
  const uint32_t chosen = compute_threads(static_cast<uint32_t>(std::max(threads, 0)), ranks);
  if (chosen > 1) limit_openmp_spinning();
  throw_if_error(check_spare_threads(chosen - 1));  // OpenMP would end the process
  at::set_num_threads(static_cast<int>(chosen));
}

int report_problems(const std::string& program, const Problems& problems) {
  ELIXIR_CHECK(!problems.empty(), "nothing to report");
  for (const Status& problem : problems.all()) {
    std::cerr << program << ": " << printable(problem.message()) << std::endl;
  }
  return problems.all().front().exit_code();
}

Status current_failure(const std::string& memory_remedy) {
  try {
    throw;
  } catch (const Error& failure) {
    return Status(failure.code(), printable(failure.what()));  // of one line, whatever is named
  } catch (const c10::OutOfMemoryError& failure) {
    return Status(Code::kResourceExhausted,
                  "LibTorch found no memory on the device: " + memory_remedy + "; " +
                      failure.what_without_backtrace());
  } catch (const c10::Error& failure) {
    const Status status = status_of(failure);
    if (status.code() == Code::kInternal) {
      return Status(status.code(), failure.what_without_backtrace());
    }
    return Status(status.code(), status.message() + "; or " + memory_remedy);
  } catch (const std::exception& failure) {
    return status_of(failure);
  }
}

int run_program(const std::string& program, const std::string& memory_remedy,
                const std::function<int()>& run) {
  try {
    return run();
  } catch (const std::exception&) {
    const Status failure = current_failure(memory_remedy);
    std::cerr << program << ": " << printable(failure.message(), /*lines=*/true) << std::endl;
    return failure.exit_code();
  }
}

}  // namespace elixir
