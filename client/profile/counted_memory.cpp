#include "client/profile/counted_memory.h"

#include <c10/core/Allocator.h>

#include <algorithm>
#include <mutex>

#include "base/check.h"

namespace elixir {
namespace {

// Above what LibTorch and profilers register.
constexpr uint8_t kPriority = 200;

struct Block {
  c10::DataPtr memory;
  std::shared_ptr<MemoryCount> count;
  uint64_t bytes = 0;
};

void free_block(void* context) {
  std::unique_ptr<Block> block(static_cast<Block*>(context));
  block->count->remove(block->bytes);
}

// Stands before the allocator of a type of device. Lives as long as the process: storages that can
// be resized keep a pointer to it.
class CountingAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(size_t bytes) override {
    c10::DataPtr memory = below->allocate(bytes);
    const std::shared_ptr<MemoryCount> counting = std::atomic_load(&count);
    if (counting == nullptr) return memory;
    const uint64_t rounded = MemoryCount::rounded(bytes);
    counting->add(rounded);
    void* const address = memory.get();
    const c10::Device device = memory.device();
    auto* const block = new Block{std::move(memory), counting, rounded};
    return {address, block, &free_block, device};
  }
  void copy_data(void* to, const void* from, std::size_t bytes) const override {
    below->copy_data(to, from, bytes);
  }

  c10::Allocator* below = nullptr;
  std::shared_ptr<MemoryCount> count;
};

CountingAllocator& allocator_of(c10::DeviceType type) {
  static auto* const meta = new CountingAllocator;
  static auto* const cpu = new CountingAllocator;
  ELIXIR_CHECK(type == c10::kMeta || type == c10::kCPU, "counts memory of kMeta and kCPU only");
  return type == c10::kMeta ? *meta : *cpu;
}

}  // namespace

void MemoryCount::add(uint64_t bytes) {
  const uint64_t now = current_ += bytes;
  for (std::atomic<uint64_t>* highest : {&peak_, &recent_peak_}) {
    uint64_t before = *highest;
    while (before < now && !highest->compare_exchange_weak(before, now)) {
    }
  }
}

CountedMemory::CountedMemory(const std::vector<c10::DeviceType>& types)
    : count_(std::make_shared<MemoryCount>()), types_(types) {
  for (const c10::DeviceType type : types_) {
    CountingAllocator& counting = allocator_of(type);
    ELIXIR_CHECK(std::atomic_load(&counting.count) == nullptr, "memory is being counted already");
    if (c10::GetAllocator(type) != &counting) counting.below = c10::GetAllocator(type);
    std::atomic_store(&counting.count, count_);
    c10::SetAllocator(type, &counting, kPriority);
  }
}

CountedMemory::~CountedMemory() {
  for (const c10::DeviceType type : types_) {
    CountingAllocator& counting = allocator_of(type);
    std::atomic_store(&counting.count, std::shared_ptr<MemoryCount>());
    c10::SetAllocator(type, counting.below, kPriority);
  }
}

bool is_counted(const c10::Storage& storage) {
  return storage.unsafeGetStorageImpl()->data_ptr().get_deleter() == &free_block;
}

}  // namespace elixir
