#include "models/program.h"

#include <ATen/Parallel.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <iostream>

#include "base/error.h"
#include "base/gpu.h"
#include "base/printable.h"
#include "base/processors.h"

namespace elixir {

const char* device_of(DeviceChoice choice) {
  const bool cuda =
      choice == DeviceChoice::kCuda || (choice == DeviceChoice::kAuto && gpu_present());
  return cuda ? "cuda" : "cpu";
}

// torchrun sets OMP_NUM_THREADS to 1, whatever the machine has.
void use_threads(int threads, uint32_t ranks) {
  const int cores = static_cast<int>(usable_processors().size());
  at::set_num_threads(threads > 0 ? threads : std::max(1, cores / static_cast<int>(ranks)));
}

int report_problems(const std::string& program, const Problems& problems) {
  ELIXIR_CHECK(!problems.empty(), "nothing to report");
  for (const Status& problem : problems.all()) {
    std::cerr << program << ": " << printable(problem.message()) << std::endl;
  }
  return problems.all().front().exit_code();
}

int run_program(const std::string& program, const std::string& memory_remedy,
                const std::function<int()>& run) {
  const auto fail = [&program](const std::string& message, Code code) {
    std::cerr << program << ": " << printable(message, /*lines=*/true) << std::endl;
    return static_cast<int>(code);
  };
  try {
    return run();
  } catch (const Error& failure) {
    return fail(printable(failure.what()), failure.code());  // of one line, whatever is named in it
  } catch (const c10::OutOfMemoryError& failure) {
    return fail("LibTorch found no memory on the device: " + memory_remedy + "; " +
                    failure.what_without_backtrace(),
                Code::kResourceExhausted);
  } catch (const c10::Error& failure) {
    return fail(failure.what_without_backtrace(), Code::kInternal);
  } catch (const std::exception& failure) {
    return fail(failure.what(), Code::kInternal);
  }
}

}  // namespace elixir
