#include "client/profile/counted_memory.h"

#include <c10/core/Allocator.h>

#include <algorithm>
#include <unordered_map>

#include "base/check.h"
#include "base/mutex.h"

namespace elixir {
namespace {

// Above what LibTorch and profilers register.
constexpr uint8_t kPriority = 200;

struct Block {
  void* context = nullptr;  // of the allocator below
  c10::DeleterFnPtr free = nullptr;
  std::shared_ptr<MemoryCount> count;
  uint64_t bytes = 0;

  void end() const {
    count->remove(bytes);
    if (free != nullptr) free(context);
  }
};

// Of meta tensors, which have no address.
void free_block(void* context) {
  const std::unique_ptr<Block> block(static_cast<Block*>(context));
  block->end();
}

// Of real memory, by address: LibTorch's raw_allocate() wants the address itself as the context.
struct LiveBlocks {
  Mutex mutex;
  std::unordered_map<void*, Block> blocks ELIXIR_GUARDED_BY(mutex);
};
LiveBlocks& live_blocks() {
  static auto* const live = new LiveBlocks;
  return *live;
}

c10::DeleterFnPtr uncounted_deleter();

// Also what was allocated while nothing was counted, by raw_deallocate().
void free_address(void* address) {
  Block block;
  {
    LiveBlocks& live = live_blocks();
    const MutexLock lock(live.mutex);
    const auto found = live.blocks.find(address);
    if (found != live.blocks.end()) {
      block = found->second;
      live.blocks.erase(found);
    }
  }
  if (block.count != nullptr) return block.end();
  uncounted_deleter()(address);
}

// Stands before the allocator of a type of device. Lives as long as the process: storages that can
// be resized keep a pointer to it.
class CountingAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(size_t bytes) override {
    c10::DataPtr memory = below->allocate(bytes);
    const std::shared_ptr<MemoryCount> counting = std::atomic_load(&count);
    if (counting == nullptr) return memory;
    // Nothing to count. (Meta storages grow from nothing without another allocation.)
    if (bytes == 0 && memory.device().is_cpu()) return memory;
    const uint64_t rounded = MemoryCount::rounded(bytes);
    counting->add(rounded);
    void* const address = memory.get();
    const c10::DeleterFnPtr free = memory.get_deleter();
    const Block block{memory.release_context(), free, counting, rounded};
    if (address == nullptr) return {nullptr, new Block(block), &free_block, memory.device()};
    LiveBlocks& live = live_blocks();
    const MutexLock lock(live.mutex);
    live.blocks[address] = block;
    return {address, address, &free_address, memory.device()};
  }
  c10::DeleterFnPtr raw_deleter() const override {
    return below->raw_deleter() != nullptr ? &free_address : nullptr;
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

c10::DeleterFnPtr uncounted_deleter() { return allocator_of(c10::kCPU).below->raw_deleter(); }

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
  const c10::DeleterFnPtr deleter = storage.unsafeGetStorageImpl()->data_ptr().get_deleter();
  return deleter == &free_block || deleter == &free_address;
}

}  // namespace elixir
