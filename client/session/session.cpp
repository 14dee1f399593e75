// Data path, hop 2 of 6: a rank publishes its gradients and its verdict on the step.

#include "client/session/session.h"

#include <cstring>

#include "base/clock.h"
#include "base/log.h"
#include "shm/futex.h"
#include "shm/messages.h"

namespace elixir {
namespace {

constexpr int64_t kWaitSliceNs = 50'000'000;  // how soon a death is noticed
constexpr int kSpins = 2000;                  // about 20 us, before the first sleep

constexpr double kSayWaitingEvery = 30;  // seconds

}  // namespace

shm::ControlHeader& Session::header() const {
  return *reinterpret_cast<shm::ControlHeader*>(control_->data());
}

shm::StepResult& Session::step_result(uint32_t step) const {
  auto* results =
      reinterpret_cast<shm::StepResult*>(control_->data() + shape_.step_results_offset());
  return results[step % shm::kStepRing];
}

shm::ChunkRecord& Session::chunk_record(uint32_t chunk) const {
  auto* records =
      reinterpret_cast<shm::ChunkRecord*>(control_->data() + shape_.chunk_records_offset());
  return records[chunk];
}

std::byte* Session::grad_slot(uint32_t chunk) const {
  return grads_->data() + shape_.grad_slot_offset(chunk);
}

const std::byte* Session::param_shard(uint32_t chunk, uint32_t rank) const {
  return params_[rank].data() + shape_.param_slot_offset(chunk);
}

namespace {

// Bits [16*half, 16*half + 16) of each FP32 value.
void copy_halves(const float* values, uint64_t numel, int half, std::byte* slot) {
  auto* out = reinterpret_cast<uint16_t*>(slot);
  for (uint64_t i = 0; i < numel; ++i) {
    uint32_t bits;
    std::memcpy(&bits, &values[i], sizeof bits);
    out[i] = static_cast<uint16_t>(bits >> (16 * half));
  }
}

}  // namespace

Status Session::load_chunk(uint32_t chunk, const float* values, bool last) {
  const auto send = [&](shm::LoadPart part, bool is_last) {
    shm::LoadChunk message{};
    message.chunk = chunk;
    message.part = static_cast<uint32_t>(part);
    message.last = is_last ? 1 : 0;
    return control_channel_
        ->request<shm::Ack>(message, "loading the initial weights", options_.request_timeout_s)
        .status();
  };
  Status status;
  if (shape_.type == ComputeType::kFp32) {
    std::memcpy(grad_slot(chunk), values, shape_.chunk_bytes());
    status = send(shm::LoadPart::kWhole, last);
  } else {
    copy_halves(values, shape_.chunk_numel, 1, grad_slot(chunk));
    ELIXIR_RETURN_IF_ERROR(send(shm::LoadPart::kHighHalf, false));
    copy_halves(values, shape_.chunk_numel, 0, grad_slot(chunk));
    status = send(shm::LoadPart::kLowHalf, last);
  }
  // What lies between parameters must count as a zero gradient from the first step on.
  std::memset(grad_slot(chunk), 0, shape_.chunk_bytes());
  return status;
}

Status Session::await_loaded() {
  return control_channel_
      ->request<shm::Ack>(shm::AwaitReady{}, "waiting for the initial weights",
                          options_.peers_timeout_s)
      .status();
}

void Session::publish_grad(uint32_t chunk, uint32_t step) {
  // Release: the slot's bytes are visible to whoever sees the step. Pairs with the acquire in
  // daemon/dispatcher.
  chunk_record(chunk).grad_step.store(step, std::memory_order_release);
}

Status Session::post_step(const shm::StepRecord& verdict) {
  auto* records =
      reinterpret_cast<shm::StepRecord*>(control_->data() + shape_.step_records_offset());
  records[verdict.step % shm::kStepRing] = verdict;
  // Release: the record above is complete. Pairs with the acquire in daemon/dispatcher.
  header().posted_step.store(verdict.step, std::memory_order_release);
  shm::StepPosted doorbell{};
  doorbell.step = verdict.step;
  return control_channel_->post(doorbell);
}

Status Session::wait_word(const std::atomic<uint32_t>& word, uint32_t step, const char* what) {
  for (int spin = 0; spin < kSpins; ++spin) {
    // Acquire: pairs with elixird's release after it wrote what the word announces.
    if (word.load(std::memory_order_acquire) >= step) return Status();
  }
  int64_t said_ns = monotonic_ns();
  for (;;) {
    const uint32_t seen = word.load(std::memory_order_acquire);  // as above
    if (seen >= step) return Status();
    ELIXIR_RETURN_IF_ERROR(check_alive());
    if (seconds_since(said_ns) > kSayWaitingEvery) {
      log_info("waiting", "for={} step={} because=\"another rank has not called step()\"", what,
               step);
      said_ns = monotonic_ns();
    }
    shm::futex_wait(word, seen, kWaitSliceNs);
  }
}

Status Session::wait_param(uint32_t chunk, uint32_t step) {
  return wait_word(chunk_record(chunk).param_step, step, "update");
}

Result<double> Session::wait_committed(uint32_t step) {
  ELIXIR_RETURN_IF_ERROR(wait_word(header().committed_step, step, "verdict"));
  return step_result(step).metric_mean;
}

Status Session::wait_finished(uint32_t step) {
  return wait_word(header().finished_step, step, "update");
}

double Session::update_numel_per_s() const {
  // Acquire: pairs with the release after StepResult was written.
  const uint32_t step = header().finished_step.load(std::memory_order_acquire);
  const shm::StepResult& result = step_result(step);
  if (step == 0 || result.update_ns == 0) return 0;
  return static_cast<double>(result.updated_numel) / static_cast<double>(result.update_ns) * 1e9;
}

Result<uint64_t> Session::weights_xxh64() {
  const Result<shm::ChecksumReply> reply = control_channel_->request<shm::ChecksumReply>(
      shm::Checksum{}, "the checksum of the weights", options_.request_timeout_s);
  if (!reply.ok()) return reply.status();
  return reply->xxh64;
}

}  // namespace elixir
