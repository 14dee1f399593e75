#include "tests/daemon/fake_job.h"

#include <algorithm>
#include <cstring>
#include <limits>

#include "optim_cpu/gradients.h"
#include "optim_cpu/master.h"

namespace elixir::testing {
namespace {

// splitmix64
uint64_t next_random(uint64_t* state) {
  uint64_t z = (*state += 0x9e3779b97f4a7c15);
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
  z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
  return z ^ (z >> 31);
}

}  // namespace

FakeModel make_model(ComputeType type, uint32_t ranks, uint32_t n_chunks, uint64_t chunk_numel) {
  FakeModel model;
  model.shape = {.type = type, .ranks = ranks, .n_chunks = n_chunks, .chunk_numel = chunk_numel};
  // Names in an order that is not the order of chunks.
  for (uint32_t chunk = 0; chunk < n_chunks; ++chunk) {
    const uint64_t half = chunk_numel / 2 / shm::kAlignNumel * shm::kAlignNumel;
    model.places.push_back(
        {fmt::format("layer.{}.weight", n_chunks - chunk), chunk, 0, half > 5 ? half - 5 : 1});
    if (half > 0) {
      model.places.push_back(
          {fmt::format("layer.{}.bias", n_chunks - chunk), chunk, half, (chunk_numel - half) - 77});
    }
  }
  model.shape.n_parameters = static_cast<uint32_t>(model.places.size());
  return model;
}

FakeModel make_long_model(ComputeType type, uint32_t ranks, uint64_t chunk_numel) {
  constexpr uint64_t kUnit = 128 * 37;
  FakeModel model;
  model.values_by_parameter = true;
  model.shape = {.type = type, .ranks = ranks, .chunk_numel = chunk_numel};
  const std::pair<const char*, uint64_t> parameters[] = {
      {"embedding", 3 * kUnit - 50}, {"up", kUnit}, {"norm", 77},
      {"head", 5 * kUnit / 2 - 3},   {"down", 901}, {"bias", 128}};
  uint64_t end = 0;  // from the first chunk on
  for (const auto& [name, numel] : parameters) {
    const uint64_t left = round_up(end, chunk_numel) - end;
    if (numel > left) end += left;
    model.places.push_back(
        {name, static_cast<uint32_t>(end / chunk_numel), end % chunk_numel, numel});
    end = round_up(end + numel, numel > chunk_numel ? chunk_numel : shm::kAlignNumel);
  }
  model.shape.n_chunks = static_cast<uint32_t>((end - 1) / chunk_numel + 1);
  model.shape.n_parameters = static_cast<uint32_t>(model.places.size());
  return model;
}

uint64_t FakeModel::used_numel(uint32_t chunk) const {
  uint64_t used = shm::kAlignNumel;
  for (const shm::ParameterPlace& place : places) {
    if (!shm::chunks_of(place, shape).contains(chunk)) continue;
    const shm::ParameterPart part = shm::part_in(place, shape, chunk);
    used = std::max(used, part.offset + part.numel);
  }
  return used;
}

std::vector<float> random_values(uint64_t seed, uint64_t numel, float scale) {
  std::vector<float> values(numel);
  uint64_t state = seed;
  for (float& value : values) {
    const auto whole = static_cast<int32_t>(next_random(&state) >> 40);  // 24 bits: exact
    value = scale * (static_cast<float>(whole) / (1 << 23) - 1.0f);
  }
  return values;
}

namespace {

// So many are summed up: one where the ranks have done so.
uint32_t gradients_of(const shm::Shape& shape) {
  return shape.exchange == shm::Exchange::kCollective ? 1 : shape.ranks;
}

// Of a chunk: what lies there of each parameter's values. `seed` tells one set of them from others.
std::vector<float> values_of_parameters(const FakeModel& model, uint32_t chunk, uint64_t seed,
                                        float scale) {
  std::vector<float> values(model.shape.chunk_numel);
  for (uint32_t i = 0; i < model.places.size(); ++i) {
    const shm::ParameterPlace& place = model.places[i];
    if (!shm::chunks_of(place, model.shape).contains(chunk)) continue;
    const shm::ParameterPart part = shm::part_in(place, model.shape, chunk);
    const std::vector<float> all = random_values(seed + (uint64_t{i} << 20), place.numel, scale);
    std::copy_n(all.begin() + static_cast<long>(part.first), part.numel,
                values.begin() + static_cast<long>(part.offset));
  }
  return values;
}

}  // namespace

std::vector<std::byte> fake_gradient(const FakeModel& model, uint32_t rank, uint32_t chunk,
                                     uint32_t step, uint32_t round) {
  const shm::Shape& shape = model.shape;
  if (shape.exchange == shm::Exchange::kCollective) rank = 0;
  const uint64_t seed = (uint64_t{round - 1} << 56) + (uint64_t{step} << 40) + rank + 1;
  std::vector<float> values =
      model.values_by_parameter
          ? values_of_parameters(model, chunk, seed, 0.5f)
          : random_values(seed + (uint64_t{chunk} << 20), shape.chunk_numel, 0.5f);
  for (uint32_t i = 0; i < model.places.size(); ++i) {
    const shm::ParameterPlace& place = model.places[i];
    if (!shm::chunks_of(place, shape).contains(chunk)) continue;
    if (model.grad_group(i, step) != shm::kNoGradient) continue;
    const shm::ParameterPart part = shm::part_in(place, shape, chunk);
    std::fill_n(values.begin() + static_cast<long>(part.offset), part.numel, 0.0f);
  }
  if (step == model.poison_step && rank + 1 == gradients_of(shape)) {
    values[3] = std::numeric_limits<float>::infinity();
  }
  // The type's own rounding, as a device would do it.
  std::vector<std::byte> grads(shape.chunk_bytes());
  std::vector<float> masters(shape.chunk_numel);
  optim::load_master(shape.type, values.data(), values.size(), grads.data(), masters.data());
  return grads;
}

std::vector<std::vector<float>> initial_values(const FakeModel& model) {
  std::vector<std::vector<float>> chunks;
  for (uint32_t chunk = 0; chunk < model.shape.n_chunks; ++chunk) {
    chunks.push_back(model.values_by_parameter
                         ? values_of_parameters(model, chunk, 1000003, 0.1f)
                         : random_values(1000003 * (chunk + 1), model.shape.chunk_numel, 0.1f));
  }
  return chunks;
}

shm::StepRecord make_record(uint32_t step, uint32_t ranks) {
  shm::StepRecord record{};
  record.step = step;
  record.rule = step % 2;  // Adam, AdamW
  record.n_groups = 1;
  record.groups[0] = {1e-2 / step, 0.1, {0.9, 0.95, 1e-8}};
  record.grad_scale = 1.0 / ranks;
  record.metric = 5.0 - 0.1 * step;
  record.gathers = 7;
  return record;
}

Reference::Reference(const FakeModel& model) : model_(model), updates_(model.places.size()) {
  const shm::Shape& shape = model.shape;
  for (const std::vector<float>& values : initial_values(model)) {
    Chunk chunk;
    chunk.param.resize(shape.chunk_bytes());
    chunk.master.resize(std::max<uint64_t>(1, shape.chunk_numel * master_bytes(shape.type)));
    chunk.exp_avg.resize(shape.chunk_numel);
    chunk.exp_avg_sq.resize(shape.chunk_numel);
    optim::load_master(shape.type, values.data(), values.size(), chunk.param.data(),
                       chunk.master.data());
    chunks_.push_back(std::move(chunk));
  }
}

// Over ranks in FP32, then over rounds.
std::vector<float> Reference::sum(uint32_t chunk, uint32_t step, uint32_t rounds) const {
  const shm::Shape& shape = model_.shape;
  std::vector<float> total(shape.chunk_numel);
  for (uint32_t round = 1; round <= rounds; ++round) {
    std::vector<std::vector<std::byte>> grads;
    std::vector<const void*> pointers;
    for (uint32_t rank = 0; rank < gradients_of(shape); ++rank) {
      grads.push_back(fake_gradient(model_, rank, chunk, step, round));
    }
    for (const auto& grad : grads) pointers.push_back(grad.data());
    const optim::GradientSpan span{.type = shape.type,
                                   .n_grads = static_cast<int>(grads.size()),
                                   .grads = pointers.data(),
                                   .grad_sum = total.data(),
                                   .begins_sum = round == 1,
                                   .numel = total.size()};
    optim::take_gradients(optim::Isa::kScalar, span, nullptr);
  }
  return total;
}

optim::Verdict Reference::step(const shm::StepRecord& record, uint32_t rounds, NormSum more) {
  std::vector<std::vector<float>> sums;
  for (uint32_t chunk = 0; chunk < chunks_.size(); ++chunk) {
    sums.push_back(sum(chunk, record.step, rounds));
    const void* const pointer = sums.back().data();
    const optim::GradientSpan span{.grads = &pointer, .numel = model_.used_numel(chunk)};
    optim::take_gradients(optim::Isa::kScalar, span, &more);
  }
  squares_ = more;
  const optim::VerdictTerms terms{record.grad_scale, record.clip_norm, record.check_finite != 0};
  optim::Verdict verdict;
  verdict.grad_scale = record.grad_scale;
  if (terms.needs_norm()) verdict = optim::judge(more, terms);
  if (verdict.skipped) return verdict;
  ++applied_;
  for (uint32_t i = 0; i < model_.places.size(); ++i) {
    const shm::ParameterPlace& place = model_.places[i];
    const uint8_t said = model_.grad_group(i, record.step);
    if (said == shm::kNoGradient) continue;
    const optim::AdamStep constants = adam_step(record, said, ++updates_[i], verdict.grad_scale);
    const shm::ChunkRun run = shm::chunks_of(place, model_.shape);
    for (uint32_t number = run.first; number < run.end(); ++number) {
      const shm::ParameterPart part = shm::part_in(place, model_.shape, number);
      Chunk& chunk = chunks_[number];
      optim::UpdateSpan span;
      span.type = model_.shape.type;
      span.grad_sum = sums[number].data() + part.offset;
      span.param = chunk.param.data() + part.offset * element_bytes(span.type);
      span.master = chunk.master.data() + part.offset * master_bytes(span.type);
      span.moments[0] = chunk.exp_avg.data() + part.offset;
      span.moments[1] = chunk.exp_avg_sq.data() + part.offset;
      span.numel = part.numel;
      optim::adam_update(optim::Isa::kScalar, span, constants);
    }
  }
  return verdict;
}

std::vector<float> Reference::masters_of(uint32_t i) const {
  const shm::ParameterPlace& place = model_.places[i];
  const shm::ChunkRun run = shm::chunks_of(place, model_.shape);
  std::vector<float> values;
  for (uint32_t chunk = run.first; chunk < run.end(); ++chunk) {
    const shm::ParameterPart part = shm::part_in(place, model_.shape, chunk);
    const std::vector<float> of_chunk = masters(chunk);
    const auto begin = of_chunk.begin() + static_cast<long>(part.offset);
    values.insert(values.end(), begin, begin + static_cast<long>(part.numel));
  }
  return values;
}

std::vector<float> Reference::masters(uint32_t chunk) const {
  std::vector<float> values(model_.shape.chunk_numel);
  optim::read_master(model_.shape.type, chunks_[chunk].param.data(), chunks_[chunk].master.data(),
                     values.size(), values.data());
  return values;
}

FakeTrainer::Options FakeJob::options_of(uint32_t local_rank) const {
  return {.folder = options_.folder,
          .job = options_.name,
          .rank = options_.first_rank + local_rank,
          .first_rank = options_.first_rank,
          .local_ranks = options_.local_ranks,
          .shape = options_.model.shape,
          .places = options_.model.places,
          .workers = options_.workers,
          .accumulate = options_.accumulate,
          .immediate = options_.immediate,
          .norms = options_.norms,
          .early = options_.early,
          .pins_params = options_.pins_params,
          .keeps_sums = options_.keeps_sums,
          .grad_group = [&model = options_.model](uint32_t place, uint32_t step) {
            return model.grad_group(place, step);
          }};
}

Result<std::unique_ptr<FakeJob>> FakeJob::attach(const Options& options) {
  auto job = std::make_unique<FakeJob>(options);
  for (uint32_t local = 0; local < job->local_ranks(); ++local) {
    Result<std::unique_ptr<FakeTrainer>> trainer = FakeTrainer::attach(job->options_of(local));
    if (!trainer.ok()) return trainer.status();
    job->ranks_.push_back(std::move(*trainer));
  }
  for (auto& rank : job->ranks_) {
    ELIXIR_RETURN_IF_ERROR(rank->await_peers());
    ELIXIR_RETURN_IF_ERROR(rank->hello());
  }
  return job;
}

Result<std::unique_ptr<FakeJob>> FakeJob::start(const Options& options) {
  Result<std::unique_ptr<FakeJob>> job = attach(options);
  if (!job.ok()) return job.status();
  ELIXIR_RETURN_IF_ERROR((*job)->load());
  return job;
}

// What of a whole chunk, `unit` values an element, lies in the rank's slot.
template <typename T>
std::vector<T> FakeJob::in_slot(uint32_t local_rank, const std::vector<T>& chunk,
                                uint64_t unit) const {
  const shm::Shape& shape = options_.model.shape;
  if (shape.exchange == shm::Exchange::kHost) return chunk;
  const uint32_t rank = options_.first_rank + local_rank;
  std::vector<T> shard(chunk.begin() + static_cast<long>(shape.shard_begin(rank) * unit),
                       chunk.begin() + static_cast<long>(shape.shard_end(rank) * unit));
  shard.resize(shape.grad_slot_numel() * unit);
  return shard;
}

Status FakeJob::load_values() {
  const std::vector<std::vector<float>> values = initial_values(options_.model);
  const bool all_load = options_.model.shape.exchange == shm::Exchange::kCollective;
  for (uint32_t local = 0; local < (all_load ? local_ranks() : 1); ++local) {
    std::vector<std::vector<float>> own;
    for (const std::vector<float>& chunk : values) own.push_back(in_slot(local, chunk, 1));
    ELIXIR_RETURN_IF_ERROR(ranks_[local]->load(own));
  }
  return Status();
}

Status FakeJob::load() {
  ELIXIR_RETURN_IF_ERROR(load_values());
  for (auto& rank : ranks_) ELIXIR_RETURN_IF_ERROR(rank->await_ready());
  return Status();
}

void FakeJob::write_chunk(uint32_t rank, uint32_t chunk, uint32_t step, uint32_t round) {
  const std::vector<std::byte> grads = fake_gradient(options_.model, rank, chunk, step, round);
  const uint64_t element = element_bytes(options_.model.shape.type);
  ranks_[rank]->write_grads(chunk, in_slot(rank, grads, element).data(), step, round);
}

void FakeJob::write_grads(uint32_t rank, uint32_t step, uint32_t round) {
  for (uint32_t chunk = 0; chunk < options_.model.shape.n_chunks; ++chunk) {
    write_chunk(rank, chunk, step, round);
  }
}

void FakeJob::publish_chunk(uint32_t rank, uint32_t chunk, uint32_t step, uint32_t round) {
  write_chunk(rank, chunk, step, round);
  ranks_[rank]->ring_grads(chunk);
}

void FakeJob::publish(uint32_t step, uint32_t round) {
  for (uint32_t chunk = options_.model.shape.n_chunks; chunk-- > 0;) {
    for (uint32_t rank = 0; rank < ranks_.size(); ++rank) publish_chunk(rank, chunk, step, round);
  }
}

Status FakeJob::wait_taken() {
  for (auto& rank : ranks_) {
    for (uint32_t chunk = 0; chunk < options_.model.shape.n_chunks; ++chunk) {
      ELIXIR_RETURN_IF_ERROR(rank->wait_taken(chunk));
    }
  }
  return Status();
}

void FakeJob::open(const shm::StepRecord& record) {
  for (auto& rank : ranks_) rank->open(record);
}

void FakeJob::post(const shm::StepRecord& record) {
  for (auto& rank : ranks_) rank->post(record);
}

Status FakeJob::wait_finished(uint32_t step) {
  for (auto& rank : ranks_) ELIXIR_RETURN_IF_ERROR(rank->wait_finished(step));
  return Status();
}

void FakeJob::post(uint32_t step) {
  if (options_.early != 0) open(make_record(step, options_.model.shape.ranks));
  for (uint32_t rank = 0; rank < ranks_.size(); ++rank) {
    write_grads(rank, step);
    const bool rings = options_.immediate != 0 || options_.norms != 0 || options_.early != 0;
    if (rings || options_.accumulate > 1) {
      for (uint32_t chunk = 0; chunk < options_.model.shape.n_chunks; ++chunk) {
        ranks_[rank]->ring_grads(chunk);
      }
    }
    shm::StepRecord record = make_record(step, options_.model.shape.ranks);
    record.metric += rank;  // each has seen other data
    ranks_[rank]->post(record);
  }
}

Status FakeJob::swing(uint32_t step) {
  if (options_.model.shape.n_swing_chunks == 0) return Status();
  for (auto& rank : ranks_) ELIXIR_RETURN_IF_ERROR(rank->swing(step));
  return Status();
}

Status FakeJob::step(uint32_t step) {
  post(step);
  ELIXIR_RETURN_IF_ERROR(swing(step));
  for (auto& rank : ranks_) ELIXIR_RETURN_IF_ERROR(rank->wait_finished(step));
  return Status();
}

Status FakeJob::compare(const Reference& reference) const {
  const FakeTrainer& rank = *ranks_.back();
  const uint64_t element = element_bytes(options_.model.shape.type);
  for (const shm::ParameterPlace& place : options_.model.places) {
    const shm::ChunkRun run = shm::chunks_of(place, options_.model.shape);
    for (uint32_t chunk = run.first; chunk < run.end(); ++chunk) {
      const shm::ParameterPart part = shm::part_in(place, options_.model.shape, chunk);
      const uint64_t begin = std::max(part.offset, first_element());
      const uint64_t end = std::min(part.offset + part.numel, end_element());
      if (begin >= end) continue;
      const auto differ = [=](const auto& have, const auto& want, uint64_t each = 1) {
        return std::memcmp(have.data() + begin * each, want.data() + begin * each,
                           (end - begin) * each * sizeof have[0]) != 0;
      };
      const char* const what =
          differ(rank.masters(chunk), reference.masters(chunk))         ? "the master"
          : differ(rank.exp_avg(chunk), reference.exp_avg(chunk))       ? "exp_avg"
          : differ(rank.exp_avg_sq(chunk), reference.exp_avg_sq(chunk)) ? "exp_avg_sq"
          : differ(rank.gather(chunk), reference.param(chunk), element) ? "the parameter"
                                                                        : nullptr;
      if (what == nullptr) continue;
      return error(Code::kInternal, "{} of '{}' differs from the reference in chunk {}", what,
                   place.name, chunk);
    }
  }
  return Status();
}

void FakeJob::detach() {
  for (auto& rank : ranks_) rank->detach();
}

}  // namespace elixir::testing
