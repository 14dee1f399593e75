#include "models/open_data.h"

#include <filesystem>
#include <limits>

#include "models/default_text.h"
#include "models/run_start.h"
#include "models/token_text.h"

namespace elixir {
namespace {

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

Status no_data(const TrainOptions& options) {
  const std::string name = options.config.name.empty() ? "the model" : options.config.name;
  const bool bytes = options.bytes_are_tokens && tokenizer_of(options).empty();
  return error(Code::kBadInput, "--data: {} needs something to be trained on; give {}", name,
               bytes ? "text files"
                     : "token files of its tokenizer (scripts/tokenize_text.py), or text and "
                       "--bytes");
}

}  // namespace

Result<TokenData> open_data(const TrainOptions& options) {
  std::vector<std::string> files = options.data;
  if (files.empty() && options.needs_data) return no_data(options);
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
  if (tokenizer.empty() && options.bytes_are_tokens) return data;
  return error(Code::kBadInput,
               "--data {}: text, but the tokens of {} are not bytes ({}); make token files of it "
               "with scripts/tokenize_text.py, or train on its bytes with --bytes",
               data->files().front(), options.config.name,
               tokenizer.empty() ? fmt::format("its vocabulary has {}", options.config.vocabulary)
                                 : "its tokenizer is " + tokenizer);
}

Problems check_data(const TrainOptions& options) {
  Problems problems;
  const bool known = options.config.context > 0;
  TokenFileOptions how = {
      .vocabulary = known ? options.config.vocabulary : std::numeric_limits<int64_t>::max(),
      .bare = options.tokens_dtype,
      .bytes = options.bytes};
  for (const std::vector<std::string>* files : {&options.data, &options.labels}) {
    how.labels = files == &options.labels;
    for (const std::string& path : *files) {
      const Status status = TokenFile::open(path, how).status();
      if (status.ok()) continue;
      problems.add(
          error(status.code(), "{} {}", how.labels ? "--labels" : "--data", status.message()));
    }
  }
  const bool opens = problems.empty() && known && !options.data.empty() && options.model.seq >= 1;
  const bool lacks = options.data.empty() && options.needs_data;
  if (opens || lacks) problems.add(open_data(options).status());
  return problems;
}

}  // namespace elixir
