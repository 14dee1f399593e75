#pragma once

#include <memory>
#include <vector>

#include "daemon/job.h"
#include "tests/fuzz/job/job_setup.h"
#include "tests/fuzz/job/update_counts.h"

namespace elixir::fuzz {

// One job of elixird, its ports, and its workers, which do a slice on request. All run in one
// thread, so equal calls give equal results. It makes only calls that a Daemon would make: no verb
// once the job is over, no message before Hello, none from the attach socket after its end.
class FuzzedJob : public daemon::JobPorts {
 public:
  explicit FuzzedJob(const JobSetup& setup);
  ~FuzzedJob();
  FuzzedJob(const FuzzedJob&) = delete;

  const JobSetup& setup() const { return setup_; }
  const daemon::Job& job() const { return *job_; }
  bool is_over() const { return overs_ > 0; }
  uint32_t ranks() const { return setup_.local_ranks; }

  // ---- the ranks come ----

  // Makes the next event of the start: a rank's place, its memory, its AttachReply or its Hello.
  // False: all ranks have come.
  bool advance_start();
  bool refuse_memory();  // fails the next rank that waits for memory; false: no rank waits
  bool said_hello(uint32_t rank) const { return rank < hellos_; }

  // ---- what reaches elixird ----

  void tick();
  void message(uint32_t rank, std::span<const std::byte> bytes);
  template <typename Message>
  void ring(uint32_t rank, Message message) {
    shm::seal_message(message, 7);
    this->message(rank, std::as_bytes(std::span(&message, 1)));
  }
  bool lose(uint32_t rank);  // false: the rank is not here
  void detach(uint32_t rank);
  void stop();

  // ---- workers and threads that fill ----

  bool has_slices() const;
  void run_slices(uint32_t most);
  bool deliver();  // delivers work that is done; false: there is none
  bool fill_sums(bool ok);

  // ---- memory ----

  const daemon::SessionMemory* memory(uint32_t rank) const;
  bool alive(uint32_t rank) const;  // its attach socket is open
  // Call it after a store to a rank's control words. It remembers the posted step.
  void note_posted(uint32_t rank);
  // Updates cannot be counted any more: numbers are not finite, or hyperparameters prevent it.
  void nothing_counts_any_more() { counts_ = false; }
  void has_meddled() { meddled_ = true; }

  // ---- invariants: each throws a Violation ----

  void check() const;
  // If nobody meddled (deaths do not matter), every chunk equals the reference.
  void check_numbers() const;
  // Each slice's parameters were halved once per applied step in which a rank said that they have
  // gradients.
  void check_counts() const;
  void check_end() const;

  // ---- what it saw ----

  uint64_t replies = 0;

 private:
  struct Told {
    uint32_t rank, cause;
    Code code;
  };

  void submit(daemon::JobWork* work) override;
  void reply(const daemon::Session& session, uint64_t request_id) override;
  void tell(const daemon::Session& session, const Status& why, uint32_t cause) override;
  void close(int socket) override;
  void fill_sums(daemon::Job& job, std::shared_ptr<daemon::FillProgress> progress) override;
  // Never called: requests for folders come by the attach socket.
  void start_save(daemon::Job&, std::shared_ptr<daemon::Saving>) override {}
  void start_restore(daemon::Job&, std::shared_ptr<daemon::Restoring>) override {}
  uint64_t free_bytes() override { return 0; }
  void free_later(std::shared_ptr<daemon::Saving>) override {}
  void over(daemon::Job& job) override;

  daemon::Session& session(uint32_t rank) const { return *job_->sessions()[rank]; }
  bool reachable(uint32_t rank) const;
  void claim(uint32_t rank);
  void called();  // after each call of elixird: notes its words and checks the invariants
  void check_numbers_of(const shm::ParameterPlace& place, uint32_t chunk, uint32_t step) const;

  const JobSetup setup_;
  std::unique_ptr<daemon::Job> job_;
  uint32_t claims_ = 0, memories_ = 0, attaches_ = 0, hellos_ = 0;
  daemon::JobWork* submitted_ = nullptr;
  uint64_t submits_ = 0;
  bool fills_ = false;
  bool counts_;
  UpdateCounts updates_;
  bool meddled_ = false;
  int overs_ = 0;
  std::vector<Told> told_;
  std::vector<int> closed_;
  std::vector<uint32_t> most_posted_;  // the greatest value of each posted_step so far
};

}  // namespace elixir::fuzz
