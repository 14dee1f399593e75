#include "client/probe/thread_team.h"

#include <time.h>

#include <algorithm>

#include "base/check.h"
#include "base/clock.h"
#include "base/processors.h"

namespace elixir::probe {
namespace {

int64_t now_ns(ThreadTeam::Clock clock) {
  if (clock == ThreadTeam::Clock::kWall) return monotonic_ns();
  timespec now;
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return now.tv_sec * int64_t{1'000'000'000} + now.tv_nsec;
}

}  // namespace

ThreadTeam::ThreadTeam(int threads, Clock clock)
    : clock_(clock),
      begin_(threads + 1),
      end_(threads + 1),
      began_ns_(threads),
      ended_ns_(threads) {
  const std::vector<int> processors = usable_processors();
  ELIXIR_CHECK(threads > 0 && !processors.empty(), "{} threads on {} processors", threads,
               processors.size());
  for (int thread = 0; thread < threads; ++thread) {
    const int processor = processors[static_cast<size_t>(thread) % processors.size()];
    threads_.emplace_back([this, thread, processor] { serve(thread, processor); });
  }
}

ThreadTeam::~ThreadTeam() {
  stop_ = true;
  begin_.arrive_and_wait();
  for (std::thread& thread : threads_) thread.join();
}

double ThreadTeam::time(const std::function<void(int)>& work) {
  work_ = &work;
  begin_.arrive_and_wait();
  end_.arrive_and_wait();
  if (clock_ == Clock::kProcessorTime) {
    int64_t most_ns = 0;
    for (size_t i = 0; i < began_ns_.size(); ++i) {
      most_ns = std::max(most_ns, ended_ns_[i] - began_ns_[i]);
    }
    return 1e-9 * static_cast<double>(most_ns);
  }
  const int64_t began_ns = *std::min_element(began_ns_.begin(), began_ns_.end());
  const int64_t ended_ns = *std::max_element(ended_ns_.begin(), ended_ns_.end());
  return 1e-9 * static_cast<double>(ended_ns - began_ns);
}

void ThreadTeam::serve(int thread, int processor) {
  bind_this_thread({processor});
  for (;;) {
    begin_.arrive_and_wait();
    if (stop_) return;
    began_ns_[static_cast<size_t>(thread)] = now_ns(clock_);
    (*work_)(thread);
    ended_ns_[static_cast<size_t>(thread)] = now_ns(clock_);
    end_.arrive_and_wait();
  }
}

}  // namespace elixir::probe
