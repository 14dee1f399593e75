#include "base/spare_threads.h"

#include <exception>
#include <future>
#include <thread>
#include <vector>

namespace elixir {

Status no_threads(const char* cause) {
  return error(Code::kResourceExhausted,
               "cannot start threads ({}): this user has reached the limit; raise the limit "
               "(ulimit -u, TasksMax in the unit) or end other programs",
               cause);
}

Status check_spare_threads(uint32_t threads) {
  std::promise<void> over;
  const std::shared_future<void> wait(over.get_future());
  std::vector<std::thread> tried;
  Status status;
  try {
    for (uint32_t i = 0; i < threads; ++i) tried.emplace_back([wait] { wait.wait(); });
  } catch (const std::exception& failure) {  // of memory, too: those that run end below
    status = no_threads(failure.what());
  }
  over.set_value();
  for (std::thread& thread : tried) thread.join();
  return status;
}

}  // namespace elixir
