#include "models/token_data.h"

#include <algorithm>
#include <utility>

#include "models/mix_bits.h"

namespace elixir {
namespace {

// Where row `row` of `step` begins, uniform in [0, starts).
int64_t sequence_start(uint64_t seed, int64_t step, int64_t row, int64_t starts) {
  const uint64_t by_step = mix_bits(mix_bits(seed) + static_cast<uint64_t>(step));
  const uint64_t random = mix_bits(by_step + static_cast<uint64_t>(row));
  return static_cast<int64_t>(random % static_cast<uint64_t>(starts));
}

}  // namespace

Status TokenData::Row::add(const std::string& flag, const std::string& path,
                           const TokenFileOptions& options) {
  Result<TokenFile> file = TokenFile::open(path, options);
  if (!file.ok()) return error(file.status().code(), "{} {}", flag, file.status().message());
  if (!files.empty() && file->text() != files.front().text()) {
    return error(Code::kBadInput,
                 "{} {} and {}: text and tokens cannot be mixed, because their tokens mean "
                 "different things; give files of one kind",
                 flag, files.front().path(), path);
  }
  begins.push_back(tokens);
  tokens += file->tokens();
  files.push_back(std::move(*file));
  return {};
}

Result<TokenData> TokenData::open(TokenDataOptions options) {
  ELIXIR_CHECK(options.seq > 0, "seq {}", options.seq);
  if (options.files.empty()) {
    return error(Code::kBadInput, "no data files; name some with {} FILE...", options.files_flag);
  }
  TokenData data;
  TokenFileOptions file = {
      .vocabulary = options.vocabulary, .bare = options.bare, .bytes = options.bytes};
  for (const std::string& path : options.files) {
    ELIXIR_RETURN_IF_ERROR(data.tokens_of_.add(options.files_flag, path, file));
  }
  file.labels = true;
  for (const std::string& path : options.labels) {
    ELIXIR_RETURN_IF_ERROR(data.labels_of_.add(options.labels_flag, path, file));
  }
  if (!options.labels.empty() && data.labels_of_.tokens != data.tokens()) {
    return error(Code::kBadInput,
                 "{} {}: {} labels, and {} has {} tokens; each token needs a label, -100 if it is "
                 "masked",
                 options.labels_flag, options.labels.front(), data.labels_of_.tokens,
                 options.files_flag, data.tokens());
  }
  if (data.tokens() < options.seq + 1) {
    return error(Code::kBadInput,
                 "{} {}: {} tokens in {} file(s), but one sequence needs {} (--seq {} and the "
                 "token after it); give more text or a smaller --seq",
                 options.files_flag, options.files.front(), data.tokens(), options.files.size(),
                 options.seq + 1, options.seq);
  }
  data.options_ = std::move(options);
  return data;
}

Status TokenData::fill(int64_t step, int64_t first_row, std::span<int64_t> inputs,
                       std::span<int64_t> targets) const {
  const auto seq = static_cast<size_t>(options_.seq);
  ELIXIR_CHECK(inputs.size() == targets.size() && inputs.size() % seq == 0,
               "{} inputs and {} targets for rows of {}", inputs.size(), targets.size(), seq);
  for (size_t row = 0; row * seq < inputs.size(); ++row) {
    int64_t start = sequence_start(options_.seed, step, first_row + static_cast<int64_t>(row),
                                   tokens() - options_.seq);
    ELIXIR_RETURN_IF_ERROR(fill_targets(&start, targets.subspan(row * seq, seq)));
    ELIXIR_RETURN_IF_ERROR(tokens_of_.read(start, inputs.subspan(row * seq, seq)));
  }
  return {};
}

Status TokenData::sequence(int64_t index, std::span<int64_t> inputs,
                           std::span<int64_t> targets) const {
  const auto seq = static_cast<size_t>(options_.seq);
  ELIXIR_CHECK(inputs.size() == seq && targets.size() == seq, "{} inputs and {} targets",
               inputs.size(), targets.size());
  ELIXIR_CHECK(index >= 0 && index < sequences(), "sequence {} of {}", index, sequences());
  const Row& labels = options_.labels.empty() ? tokens_of_ : labels_of_;
  ELIXIR_RETURN_IF_ERROR(labels.read(index * options_.seq + 1, targets));
  return tokens_of_.read(index * options_.seq, inputs);
}

Status TokenData::fill_targets(int64_t* start, std::span<int64_t> targets) const {
  if (options_.labels.empty()) return tokens_of_.read(*start + 1, targets);
  const int64_t last = tokens() - options_.seq - 1;
  const int64_t first_try = *start;
  bool wrapped = false;
  for (;;) {
    ELIXIR_RETURN_IF_ERROR(labels_of_.read(*start + 1, targets));
    const bool learns = std::any_of(targets.begin(), targets.end(),
                                    [](int64_t label) { return label != kMaskedLabel; });
    if (learns) return {};
    if (wrapped && *start >= first_try) {
      return error(Code::kBadInput,
                   "{} {}: every label is masked (-100), so there is nothing to learn",
                   options_.labels_flag, options_.labels.front());
    }
    wrapped = wrapped || *start == last;
    *start = *start == last ? 0 : std::min(*start + options_.seq, last);
  }
}

Status TokenData::Row::read(int64_t begin, std::span<int64_t> out) const {
  ELIXIR_CHECK(begin >= 0 && begin + static_cast<int64_t>(out.size()) <= tokens,
               "tokens {} to {} of {}", begin, begin + static_cast<int64_t>(out.size()), tokens);
  auto next = std::upper_bound(begins.begin(), begins.end(), begin);
  auto index = static_cast<size_t>(next - begins.begin()) - 1;
  while (!out.empty()) {
    const TokenFile& file = files[index];
    const int64_t in_file = begin - begins[index];
    const auto count = std::min(out.size(), static_cast<size_t>(file.tokens() - in_file));
    ELIXIR_RETURN_IF_ERROR(file.read(in_file, out.first(count)));
    out = out.subspan(count);
    begin += static_cast<int64_t>(count);
    ++index;
  }
  return {};
}

}  // namespace elixir
