#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "optim_cpu/adam.h"
#include "optim_cpu/verdict.h"
#include "tests/daemon/fake_trainer.h"

namespace elixir::testing {

// A small model cut into chunks, with the gaps that alignment makes.
struct FakeModel {
  shm::Shape shape;
  std::vector<shm::ParameterPlace> places;
  uint32_t poison_step = 0;           // the step with an infinite gradient on the last rank
  std::vector<uint32_t> groups = {};  // by place; empty: all in group 0
  // True: values depend on the parameter's elements, wherever they lie, and are zero between
  // parameters. False: values depend on the chunk's elements.
  bool values_by_parameter = false;
  // Places that have no gradient in a step. Null: none.
  std::function<bool(uint32_t place, uint32_t step)> unused = {};

  // A rank's shm::GradGroup for the place.
  uint8_t grad_group(uint32_t place, uint32_t step) const {
    if (unused && unused(place, step)) return shm::kNoGradient;
    return static_cast<uint8_t>(1 + (groups.empty() ? 0 : groups[place]));
  }

  uint64_t used_numel(uint32_t chunk) const;  // up to the end of its last parameter
};
FakeModel make_model(ComputeType type, uint32_t ranks, uint32_t n_chunks, uint64_t chunk_numel);
// Two parameters with slightly less than 3 and 2.5 times 128 * 37 elements, among four short ones.
// Their values do not depend on the chunk length. A parameter that is longer than a chunk is a long
// one.
FakeModel make_long_model(ComputeType type, uint32_t ranks, uint64_t chunk_numel);

// Deterministic values: equal seeds give equal numbers.
std::vector<float> random_values(uint64_t seed, uint64_t numel, float scale);
// One rank's gradient of a whole chunk in a step and round, in the model's type. With the
// collective exchange it is the ranks' sum, for any rank.
std::vector<std::byte> fake_gradient(const FakeModel& model, uint32_t rank, uint32_t chunk,
                                     uint32_t step, uint32_t round = 1);
std::vector<std::vector<float>> initial_values(const FakeModel& model);
shm::StepRecord make_record(uint32_t step, uint32_t ranks);

// The states that elixird must reach: whole chunks, updated by the scalar kernel.
class Reference {
 public:
  explicit Reference(const FakeModel& model);
  // With `rounds` above 1, sums the gradients of the rounds in FP32. The verdict covers the squares
  // of the whole gradient and those in `more`.
  optim::Verdict step(const shm::StepRecord& record, uint32_t rounds = 1, NormSum more = {});
  uint64_t applied() const { return applied_; }
  const NormSum& squares() const { return squares_; }  // the last step's, with `more`
  const std::vector<std::byte>& param(uint32_t chunk) const { return chunks_[chunk].param; }
  std::vector<float> masters_of(uint32_t place) const;
  const std::vector<float>& exp_avg(uint32_t chunk) const { return chunks_[chunk].exp_avg; }
  const std::vector<float>& exp_avg_sq(uint32_t chunk) const { return chunks_[chunk].exp_avg_sq; }
  std::vector<float> masters(uint32_t chunk) const;

 private:
  struct Chunk {
    std::vector<std::byte> param, master;
    std::vector<float> exp_avg, exp_avg_sq;
  };
  std::vector<float> sum(uint32_t chunk, uint32_t step, uint32_t rounds) const;
  FakeModel model_;
  std::vector<Chunk> chunks_;
  uint64_t applied_ = 0;
  NormSum squares_ = {};
  std::vector<uint64_t> updates_;  // by place
};

// All ranks of a job, driven in step by one thread.
class FakeJob {
 public:
  struct Options {
    shm::RuntimeFolder folder = {};
    std::string name = "job";
    FakeModel model = make_model(ComputeType::kFp32, 2, 3, 1024);
    uint32_t workers = 0;
    uint32_t accumulate = 1;
    uint32_t immediate = 0;
    uint32_t norms = 0;
    uint32_t early = 0;  // the shape has the spare slots
    uint32_t pins_params = 0;
    bool keeps_sums = false;   // FakeTrainer::sums_fd()
    uint32_t first_rank = 0;   // this node's first rank (collective exchange)
    uint32_t local_ranks = 0;  // ranks on this node; 0: all
  };
  // Has no ranks at first. A job in this process adds its own.
  explicit FakeJob(const Options& options) : options_(options) {}
  FakeJob(const FakeJob&) = delete;  // its trainers use its model
  // A job that has attached and said hello, but has not loaded.
  static Result<std::unique_ptr<FakeJob>> attach(const Options& options);
  // A job that has attached and loaded.
  static Result<std::unique_ptr<FakeJob>> start(const Options& options);

  // The ranks that may load do so; then all ranks are ready.
  Status load();
  Status load_values();
  // Write a rank's gradients of one chunk, or of all chunks, without doorbells.
  void write_chunk(uint32_t rank, uint32_t chunk, uint32_t step, uint32_t round = 1);
  void write_grads(uint32_t rank, uint32_t step, uint32_t round = 1);
  // Writes them and rings a doorbell.
  void publish_chunk(uint32_t rank, uint32_t chunk, uint32_t step, uint32_t round = 1);
  // Publishes all ranks' gradients of a round, with doorbells, from the last chunk to the first.
  void publish(uint32_t step, uint32_t round = 1);
  Status wait_taken();
  void open(const shm::StepRecord& record);
  void post(const shm::StepRecord& record);  // all ranks post, without gradients
  Status wait_finished(uint32_t step);
  void post(uint32_t step);  // every rank writes its gradients and posts
  // Makes every rank's updates of swing chunks after a post.
  Status swing(uint32_t step);
  Status step(uint32_t step);  // post, swing and wait
  // Compares parameters, masters and moments with the reference's, bit for bit: every element of
  // this node's shards, up to each parameter's end.
  Status compare(const Reference& reference) const;
  void detach();

  FakeTrainer& rank(uint32_t rank) { return *ranks_[rank]; }
  const FakeModel& model() const { return options_.model; }
  const Options& options() const { return options_; }
  uint32_t local_ranks() const {
    return options_.local_ranks != 0 ? options_.local_ranks : options_.model.shape.ranks;
  }
  // The range of a chunk's elements whose states this node has.
  uint64_t first_element() const { return options_.model.shape.shard_begin(options_.first_rank); }
  uint64_t end_element() const {
    return options_.model.shape.shard_end(options_.first_rank + local_ranks() - 1);
  }
  std::vector<std::unique_ptr<FakeTrainer>>& ranks() { return ranks_; }
  FakeTrainer::Options options_of(uint32_t local_rank) const;

 private:
  template <typename T>
  std::vector<T> in_slot(uint32_t local_rank, const std::vector<T>& chunk, uint64_t unit) const;

  const Options options_;
  std::vector<std::unique_ptr<FakeTrainer>> ranks_;
};

}  // namespace elixir::testing
