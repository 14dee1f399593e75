#pragma once

// Ranks of a job as forked processes, so that a test can stop and kill them.

#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "base/check.h"
#include "client/ranks/member.h"
#include "tests/support/patience.h"

namespace elixir {

inline constexpr uint32_t kMaxForkedRanks = 8;
using test::eventually;
using test::kPatienceS;

// Shared by the test and all ranks: the stage that each rank has reached, and a text of each.
class Blackboard {
 public:
  void reach(uint32_t rank, int stage) { stages_[rank] = stage; }
  int stage(uint32_t rank) const { return stages_[rank]; }
  void write(uint32_t rank, std::string_view text) {
    const size_t bytes = std::min(text.size(), sizeof texts_[rank] - 1);
    std::memcpy(texts_[rank], text.data(), bytes);
    texts_[rank][bytes] = '\0';
  }
  std::string text(uint32_t rank) const { return texts_[rank]; }

 private:
  std::atomic<int> stages_[kMaxForkedRanks];
  char texts_[kMaxForkedRanks][4096];
};

class ForkedRanks {
 public:
  // Each rank runs `body` and exits with its result. The members have the true pids. REQUIRES: the
  // caller has no other threads.
  using Body = std::function<int(uint32_t rank, const std::vector<Member>&, Blackboard&)>;
  ForkedRanks(uint32_t ranks, const Body& body) {
    void* memory = ::mmap(nullptr, sizeof(Blackboard), PROT_READ | PROT_WRITE,
                          MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    ELIXIR_CHECK(memory != MAP_FAILED, "mmap");
    board_ = new (memory) Blackboard;
    int ends[2];
    ELIXIR_CHECK(::pipe(ends) == 0, "pipe");
    for (uint32_t rank = 0; rank < ranks; ++rank) {
      const pid_t pid = ::fork();
      if (pid == 0) {
        ::close(ends[1]);
        std::vector<Member> members(ranks);
        read_all(ends[0], members);
        ::_exit(body(rank, members, *board_));
      }
      pids_.push_back(pid);
    }
    for (uint32_t rank = 0; rank < ranks; ++rank) {  // one copy for each rank to read
      const ssize_t bytes = static_cast<ssize_t>(pids_.size() * sizeof(pid_t));
      ELIXIR_CHECK(::write(ends[1], pids_.data(), pids_.size() * sizeof(pid_t)) == bytes, "write");
    }
    ::close(ends[0]);
    ::close(ends[1]);
  }
  ~ForkedRanks() {
    for (const pid_t pid : pids_) {
      if (pid <= 0) continue;
      ::kill(pid, SIGKILL);
      ::waitpid(pid, nullptr, 0);
    }
    ::munmap(board_, sizeof(Blackboard));
  }
  ForkedRanks(const ForkedRanks&) = delete;

  Blackboard& board() { return *board_; }
  pid_t pid(uint32_t rank) const { return pids_[rank]; }
  std::string name(uint32_t rank) const {
    return "rank " + std::to_string(rank) + " (pid " + std::to_string(pids_[rank]) + " on ";
  }
  void signal(uint32_t rank, int number) { ::kill(pids_[rank], number); }
  // Returns once all threads of the rank stand still. The signal goes to one thread, and the others
  // run until that one has been scheduled.
  void stop(uint32_t rank) {
    ELIXIR_CHECK(::kill(pids_[rank], SIGSTOP) == 0, "kill");
    int status = 0;
    ELIXIR_CHECK(::waitpid(pids_[rank], &status, WUNTRACED) == pids_[rank] && WIFSTOPPED(status),
                 "waitpid");
  }
  bool all_reach(int stage) {
    return eventually([&] {
      for (uint32_t rank = 0; rank < pids_.size(); ++rank) {
        if (pids_[rank] > 0 && board_->stage(rank) < stage) return false;
      }
      return true;
    });
  }
  // The exit code, or 128 + signal; -1: the rank did not end in time.
  int wait(uint32_t rank) {
    int status = 0;
    const bool ended =
        eventually([&] { return ::waitpid(pids_[rank], &status, WNOHANG) == pids_[rank]; });
    if (!ended) return -1;
    pids_[rank] = -1;
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  }

 private:
  static void read_all(int fd, std::vector<Member>& members) {
    std::vector<pid_t> pids(members.size());
    const size_t bytes = pids.size() * sizeof(pid_t);
    ELIXIR_CHECK(::read(fd, pids.data(), bytes) == static_cast<ssize_t>(bytes), "read");
    char host[256] = "";
    ::gethostname(host, sizeof host - 1);
    for (uint32_t rank = 0; rank < members.size(); ++rank) {
      members[rank] = {rank, static_cast<uint32_t>(pids[rank]), host, ""};
    }
  }

  Blackboard* board_ = nullptr;
  std::vector<pid_t> pids_;
};

}  // namespace elixir
