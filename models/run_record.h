#pragma once

// The part of its command line that a run keeps in a checkpoint: the manifest's `program`, a JSON
// object.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "models/train_options.h"

namespace elixir {

// Records all options that later weights depend on: the model's name, seed, the learning rate's
// schedule with its steps, decayed and frozen parameters. Also batch, sequence, passes, ranks,
// dropout, type, clipping, loss scale, and the data's files with their sizes. AdamW's own numbers
// are in the checkpoint itself. `text`: the data is text, and its bytes are the tokens.
std::string run_record(const TrainOptions& options, const std::vector<std::string>& data_files,
                       bool text, uint32_t ranks);

// These read the record of the run that wrote a checkpoint: the manifest's `program` ("": the
// folder has none), the peak learning rate, whether weight decay was on all parameters, and the
// expression of --freeze ("": none). Older releases did not record the last two: they decayed all
// parameters and froze none.
std::string recorded_program(const std::string& folder);
std::optional<double> recorded_lr(std::string_view program);
bool recorded_decay_all(std::string_view program);
std::string recorded_freeze(std::string_view program);
// kNone: the record does not have it.
enum class RecordedData : uint8_t { kNone, kDefaultText, kText, kTokens };
RecordedData recorded_data(std::string_view program);

// One line for each field in which `now` differs from `written`, the record in the checkpoint:
// "seed was 1 and is 2". `written` is not trusted, because any program may have written it. Fields
// that it does not have give no line, and neither do "" and other programs' text.
std::vector<std::string> record_differences(std::string_view written, std::string_view now);

}  // namespace elixir
