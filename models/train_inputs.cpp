#include "models/train_inputs.h"

#include <ATen/Functions.h>

#include <filesystem>

#include "client/tensors/linear_cross_entropy.h"
#include "models/default_text.h"
#include "models/token_text.h"

namespace elixir {
namespace {

static_assert(kMaskedLabel == kIgnoredTarget);

constexpr const char* kTokenizers[] = {"tokenizer.json", "tokenizer.model", "tokenizer_config.json",
                                       "vocab.json",     "merges.txt",      "vocab.txt",
                                       "spiece.model",   "tekken.json"};

// The path of a file in the model's folder by which its tokenizer is known; "": none.
std::string tokenizer_of(const TrainOptions& options) {
  namespace fs = std::filesystem;
  for (const std::string& folder :
       {options.checkpoints.init, fs::path(options.model.config_path).parent_path().string()}) {
    for (const char* name : kTokenizers) {
      std::error_code ignored;
      const fs::path path = fs::path(folder) / name;
      if (!folder.empty() && fs::is_regular_file(path, ignored)) return path.string();
    }
  }
  return "";
}

}  // namespace

DecoderOptions model_options(const TrainOptions& options) {
  return {.seed = options.seed,
          .dropout = options.dropout,
          .dtype = scalar_type(options.run.dtype),
          .checkpoint_activations = options.model.checkpoint_activations};
}

Result<TokenData> open_data(const TrainOptions& options) {
  std::vector<std::string> files = options.data;
  if (files.empty() && options.needs_data) {
    return error(Code::kBadInput,
                 "--data: {} needs something to be trained on; give token files of its tokenizer "
                 "(scripts/tokenize_text.py), or text and --bytes",
                 options.config.name);
  }
  if (files.empty()) {
    Result<std::vector<std::string>> sources = default_text();
    if (!sources.ok()) return sources.status();
    files = std::move(*sources);
  }
  Result<TokenData> data = TokenData::open({.files = std::move(files),
                                            .labels = options.labels,
                                            .vocabulary = options.config.vocabulary,
                                            .bare = options.tokens_dtype,
                                            .bytes = options.bytes,
                                            .seq = options.model.seq,
                                            .seed = options.seed});
  if (!data.ok() || !data->text() || options.bytes) return data;
  const std::string tokenizer = tokenizer_of(options);
  const bool bytes_are_tokens =
      !options.needs_data || options.config.vocabulary == kBytesVocabulary;
  if (tokenizer.empty() && bytes_are_tokens) return data;
  return error(Code::kBadInput,
               "--data {}: text, but the tokens of {} are not bytes ({}); make token files of it "
               "with scripts/tokenize_text.py, or train on its bytes with --bytes",
               data->files().front(), options.config.name,
               tokenizer.empty() ? fmt::format("its vocabulary has {}", options.config.vocabulary)
                                 : "its tokenizer is " + tokenizer);
}

Result<Batch> read_batch(const TokenData& data, int64_t step, int64_t first_row, int64_t rows) {
  Batch batch = {at::empty({rows, data.seq()}, at::kLong),
                 at::empty({rows, data.seq()}, at::kLong)};
  const auto span = [](at::Tensor& tensor) {
    return std::span(tensor.data_ptr<int64_t>(), static_cast<size_t>(tensor.numel()));
  };
  ELIXIR_RETURN_IF_ERROR(data.fill(step, first_row, span(batch.inputs), span(batch.targets)));
  return batch;
}

}  // namespace elixir
