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

// Files that a command line names, and the flags that name them.
struct NamedFiles {
  const std::vector<std::string>& data;
  const std::vector<std::string>& labels;
  const char *data_flag, *labels_flag;
};

NamedFiles training_files(const TrainOptions& options, const std::vector<std::string>& data) {
  return {data, options.labels, "--data", "--labels"};
}

NamedFiles validation_files(const TrainOptions& options) {
  return {options.validation.data, options.validation.labels, "--val-data", "--val-labels"};
}

// kBadInput: text whose bytes are not the model's tokens.
Result<TokenData> open_files(const NamedFiles& files, const TrainOptions& options) {
  Result<TokenData> data = TokenData::open({.files = files.data,
                                            .labels = files.labels,
                                            .vocabulary = options.config.vocabulary,
                                            .bare = options.tokens_dtype,
                                            .bytes = options.bytes,
                                            .seq = options.model.seq,
                                            .seed = options.seed,
                                            .files_flag = files.data_flag,
                                            .labels_flag = files.labels_flag});
  if (!data.ok() || !data->text()) return data;
  if (options.bytes && options.config.vocabulary < kBytesVocabulary) {
    return error(
        Code::kBadInput,
        "{} {}: --bytes makes {} tokens of a text, and the vocabulary of {} has {}; give a "
        "model with more, or token files",
        files.data_flag, data->files().front(), kBytesVocabulary, options.config.name,
        options.config.vocabulary);
  }
  if (options.bytes) return data;
  const std::string tokenizer = tokenizer_of(options);
  if (tokenizer.empty() && options.bytes_are_tokens) return data;
  return error(Code::kBadInput,
               "{} {}: text, but the tokens of {} are not bytes ({}); make token files of it "
               "with scripts/tokenize_text.py, or train on its bytes with --bytes",
               files.data_flag, data->files().front(), options.config.name,
               tokenizer.empty() ? fmt::format("its vocabulary has {}", options.config.vocabulary)
                                 : "its tokenizer is " + tokenizer);
}

void check_files(const NamedFiles& files, const TrainOptions& options, Problems& problems) {
  const bool known = options.config.context > 0;
  TokenFileOptions how = {
      .vocabulary = known ? options.config.vocabulary : std::numeric_limits<int64_t>::max(),
      .bare = options.tokens_dtype,
      .bytes = options.bytes};
  for (const std::vector<std::string>* named : {&files.data, &files.labels}) {
    how.labels = named == &files.labels;
    for (const std::string& path : *named) {
      const Status status = TokenFile::open(path, how).status();
      if (status.ok()) continue;
      problems.add(error(status.code(), "{} {}", how.labels ? files.labels_flag : files.data_flag,
                         status.message()));
    }
  }
}

}  // namespace

Result<TokenData> open_data(const TrainOptions& options) {
  if (!options.data.empty()) return open_files(training_files(options, options.data), options);
  if (options.needs_data) return no_data(options);
  const Result<std::vector<std::string>> sources = default_text();
  if (!sources.ok()) return sources.status();
  return open_files(training_files(options, *sources), options);
}

Result<std::optional<TokenData>> open_validation_data(const TrainOptions& options) {
  if (options.validation.data.empty()) return std::optional<TokenData>();
  Result<TokenData> data = open_files(validation_files(options), options);
  if (!data.ok()) return data.status();
  return std::optional<TokenData>(std::move(*data));
}

Problems check_data(const TrainOptions& options) {
  Problems problems, of_validation;
  check_files(training_files(options, options.data), options, problems);
  check_files(validation_files(options), options, of_validation);
  const bool known = options.config.context > 0 && options.model.seq >= 1;
  const bool missing = options.data.empty() && options.needs_data;
  if ((problems.empty() && known && !options.data.empty()) || missing) {
    problems.add(open_data(options).status());
  }
  if (of_validation.empty() && known) of_validation.add(open_validation_data(options).status());
  problems.add(of_validation);
  return problems;
}

}  // namespace elixir
