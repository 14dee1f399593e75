#include "ctl/status_legend.h"

#include <fmt/core.h>

#include "base/wrapped.h"

namespace elixir::ctl {
namespace {

struct Meaning {
  const char *name, *text;
};

constexpr Meaning kDaemon[] = {
    {"serves", "Which trainers use this elixird: those of one launch, or all that find it."},
    {"folder", "Its runtime folder. Set ELIXIR_RUNTIME_DIR to it to use this elixird."},
    {"charged to", "The control group that pays for the model states. Its memory limit counts."},
    {"processors",
     "Processors that elixird may use. SHARED: another elixird uses some of them, so both are "
     "slower."},
    {"threads", "Update threads on each NUMA node."},
    {"pages", "Page size of the states' memory. 2.00 MiB (huge pages) is best."},
    {"bandwidth",
     "Memory bandwidth in place: bytes read and written again per second. The CPU's Adam cannot be "
     "faster."},
};

constexpr Meaning kJob[] = {
    {"ranks", "Trainer processes on this node, of all, and how gradients are exchanged."},
    {"waiting", "Ranks that wait for others, and for how long. Nothing if nobody waits."},
    {"chunks",
     "Parameters are stored in chunks of equal length. Waste is the part of them that holds no "
     "parameter."},
    {"parameters", "Parameters of the model, frozen ones included."},
    {"host memory",
     "Bytes by kind. A BF16 run needs 14 bytes per parameter and early updates some more. SLOW "
     "UPDATES names memory that is swapped out or on a far NUMA node."},
    {"device",
     "Bytes that Elixir holds on the GPU: rCache, gradients, and states that live there. SLOW "
     "COPIES: host memory that is not page-locked."},
    {"steps done", "Steps, the last loss, and the chunks that wait for their update now."},
    {"update",
     "Parameters that elixird updates per second, now and on average, and the share of the memory "
     "bandwidth that this takes. Near 100 % memory is the limit."},
    {"early updates",
     "Chunks that were updated before the step's verdict was known. An update stands if clipping "
     "and overflow did not change it; otherwise it is made again."},
    {"swing chunks", "Chunks whose states visit the GPU for their update."},
    {"last step",
     "Chunks gathered to the GPU, blocks of the rCache that were evicted for them, and bytes both "
     "ways."},
    {"times",
     "Milliseconds of the last step; time in which the GPU waited (exposed); and how long copies "
     "up and down and the update were busy."},
    {"SLOW", "Rare delays that cost time: docs/elixird.md, \"The status\"."},
    {"gradients",
     "The norm before clipping, the factor that clipping applied, and steps that were applied or "
     "skipped because of an overflow."},
    {"saves",
     "Checkpoints that were published, failed or dropped; the one under way; how long the last one "
     "took, and how long updates waited for it (stall)."},
};

}  // namespace

std::string status_legend() {
  std::string out = "elixird\n";
  const auto add = [&out](const auto& meanings) {
    for (const auto& [name, text] : meanings) out += labelled(fmt::format("  {}", name), text, 17);
  };
  add(kDaemon);
  out += "\njob\n";
  add(kJob);
  return out;
}

}  // namespace elixir::ctl
