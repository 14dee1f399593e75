#pragma once

// What a checkpoint keeps of the command line that wrote it, beside the model: the manifest's
// `program`, a JSON object.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "models/train_options.h"

namespace elixir {

// What the weights depend on beside the checkpoint: the model's name, seed, steps and what else
// makes the learning rate's schedule, which parameters decay and which are frozen, batch, sequence,
// passes, ranks, dropout, type, clipping, loss scale, and the data's files with their sizes.
// AdamW's own numbers are the checkpoint's. `text`: the data is text, whose bytes are the tokens.
std::string run_record(const TrainOptions& options, const std::vector<std::string>& data_files,
                       bool text, uint32_t ranks);

// Of the run that wrote a checkpoint, as far as its record says it: the manifest's `program`, "" if
// the folder has none; the peak learning rate; whether weight decay was on all parameters; the
// expression of --freeze, "" if there is none. Older releases that did not write these had weight
// decay on all parameters and none frozen.
std::string recorded_program(const std::string& folder);
std::optional<double> recorded_lr(std::string_view program);
bool recorded_decay_all(std::string_view program);
std::string recorded_freeze(std::string_view program);
// kNone: the record does not say it.
enum class RecordedData : uint8_t { kNone, kDefaultText, kText, kTokens };
RecordedData recorded_data(std::string_view program);

// One line for each field in which `now` differs from what was written with the checkpoint, which
// anybody may have written: "seed was 1 and is 2". What an older release did not write has none. ""
// and other programs' text have none.
std::vector<std::string> record_differences(std::string_view written, std::string_view now);

}  // namespace elixir
