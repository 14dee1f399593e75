#pragma once

#include <gtest/gtest.h>

#include <new>
#include <string>
#include <vector>

#include "daemon/job.h"
#include "tests/daemon/fake_job.h"

namespace elixir::testing {

// Records a job's requests, in order of time. Nothing happens by itself.
struct FakePorts : daemon::JobPorts {
  struct Told {
    uint32_t rank;
    Code code;
    std::string text;
    uint32_t cause;
    bool operator==(const Told&) const = default;
  };

  void submit(daemon::JobWork* work) override {
    EXPECT_EQ(submitted, nullptr) << "a second activity while one is in flight";
    submitted = work;
    ++submits;
  }
  void reply(const daemon::Session& session, uint64_t request_id) override {
    replies.push_back({session.local_rank, request_id});
  }
  void tell(const daemon::Session& session, const Status& why, uint32_t cause) override {
    told.push_back({session.local_rank, why.code(), why.message(), cause});
  }
  void close(int socket) override { closed.push_back(socket); }
  void fill_sums(daemon::Job&, std::shared_ptr<daemon::FillProgress> progress) override {
    fill_progress = std::move(progress);
    ++fills;
  }
  void start_save(daemon::Job&, std::shared_ptr<daemon::Saving> saving) override {
    if (lacks_memory) throw std::bad_alloc();
    EXPECT_EQ(this->saving, nullptr) << "a second save while one is under way";
    this->saving = std::move(saving);
    ++saves;
  }
  void start_restore(daemon::Job&, std::shared_ptr<daemon::Restoring> restoring) override {
    if (lacks_memory) throw std::bad_alloc();
    this->restoring = std::move(restoring);
  }
  uint64_t free_bytes() override { return room_bytes; }
  void free_later(std::shared_ptr<daemon::Saving>) override {}
  void over(daemon::Job&) override { ++overs; }

  daemon::JobWork* submitted = nullptr;  // the work that the workers have
  int submits = 0;
  std::vector<std::pair<uint32_t, uint64_t>> replies;
  std::vector<Told> told;
  std::vector<int> closed;
  std::shared_ptr<daemon::FillProgress> fill_progress;
  int fills = 0;
  std::shared_ptr<daemon::Saving> saving;  // the save that is under way
  int saves = 0;
  std::shared_ptr<daemon::Restoring> restoring;
  uint64_t room_bytes = uint64_t{1} << 40;
  int overs = 0;
  bool lacks_memory = false;  // threads that save or load get no memory
};

// One job, its trainers beside it, and its workers, all in the test's thread.
class InProcessJob {
 public:
  using Options = FakeJob::Options;
  explicit InProcessJob(const Options& options)
      : trainers(options), model(trainers.model()), job(job_options(options), &ports) {}

  // The rank's place is taken, and its memory is being reserved.
  daemon::Session& claim(uint32_t rank);
  daemon::Session& rank(uint32_t rank) { return *job.sessions()[rank]; }
  // The rank's memory is reserved.
  void reserve(uint32_t rank);
  // Attaches all ranks, so that they are ready to load.
  void attach();
  // Attaches and loads all ranks.
  void start();
  void await_ready(uint32_t rank, uint64_t request_id, bool all_ranks = false);

  // Does the work in flight and all work that follows from it, as the workers and the event loop
  // would.
  void run_workers();
  // Does the work in flight, once.
  void finish_work();

  // The rank writes, and the job hears nothing of it.
  void write_chunk(uint32_t rank, uint32_t chunk, uint32_t step, uint32_t micro_step = 1) {
    trainers.write_chunk(rank, chunk, step, micro_step);
  }
  void write_grads(uint32_t rank, uint32_t step, uint32_t micro_step = 1) {
    trainers.write_grads(rank, step, micro_step);
  }
  void write_record(uint32_t rank, const shm::StepRecord& record) {
    trainers.rank(rank).write_record(record);
  }
  void open(uint32_t rank, uint32_t step);  // immediate updates: stores the hyperparameters
  // With the doorbell. The status is the error that would end the rank's session.
  Status publish_chunk(uint32_t rank, uint32_t chunk, uint32_t step, uint32_t micro_step = 1);
  Status publish(uint32_t rank, uint32_t step, uint32_t micro_step = 1);
  void publish_all(uint32_t step, uint32_t micro_step = 1);
  // request_sums() asks for the sums of all chunks that the rank published last. taken() returns
  // whether they have all been made.
  Status request_sums(uint32_t rank);
  bool taken(uint32_t rank);
  void fill_sums();  // provides the memory for the sums
  // The rank drops its published gradients.
  void discard(uint32_t rank) { trainers.rank(rank).discard(); }
  // Post without the doorbell, and with it.
  void post_silently(uint32_t rank, uint32_t step);
  void post(uint32_t rank, const shm::StepRecord& record);
  void post(uint32_t rank, uint32_t step) { post(rank, make_record(step, model.shape.ranks)); }
  void post_all(uint32_t step);
  // Makes a whole step: gradients and posts of all ranks, and the work that follows.
  void make_step(uint32_t step);

  shm::ControlHeader& header(uint32_t rank) { return this->rank(rank).memory->header(); }
  bool equals(const Reference& reference) const { return trainers.compare(reference).ok(); }
  uint32_t finished_step() { return header(0).finished_step.load(); }

  FakeJob trainers;
  const FakeModel& model;
  FakePorts ports;
  daemon::Job job;

 private:
  daemon::Job::Options job_options(const Options& options) const;
};

// A job whose ranks have all loaded.
struct StartedJob : InProcessJob {
  explicit StartedJob(const Options& options) : InProcessJob(options) { start(); }
};

// Expects that the rank got this error, with a text that contains `needle`.
void expect_told(const FakePorts& ports, uint32_t rank, Code code, const std::string& needle);

}  // namespace elixir::testing
