#include "checkpoint/new_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <filesystem>

#include "checkpoint/folder_calls.h"

namespace elixir::checkpoints {
namespace {

struct Place {
  UniqueFd parent;
  std::string name;
};

Result<Place> place_of(const std::string& path) {
  const std::filesystem::path whole = std::filesystem::absolute(path);
  Place place{
      .parent = UniqueFd(::open(whole.parent_path().c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC)),
      .name = whole.filename()};
  if (!place.parent.valid()) return write_status(whole.parent_path());
  if (place.name.empty() || place.name == "." || place.name == "..") {
    return error(Code::kInvalidArgument, "{} names a folder, and no file", path);
  }
  return place;
}

}  // namespace

Status check_new_file(const std::string& path) {
  const Result<Place> place = place_of(path);
  return place.ok() ? check_not_taken(place->parent.get(), place->name) : place.status();
}

Result<NewFile> NewFile::create(const std::string& path) {
  Result<Place> place = place_of(path);
  if (!place.ok()) return place.status();
  ELIXIR_RETURN_IF_ERROR(check_not_taken(place->parent.get(), place->name));
  NewFile made;
  made.parent_ = std::move(place->parent);
  made.name_ = place->name;
  made.partial_name_ = fmt::format("{}{}{}", place->name, kPartial, ::getpid());
  made.fd_.reset(::openat(made.parent_.get(), made.partial_name_.c_str(),
                          O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0666));
  if (made.fd_.valid()) return made;
  return write_status(fmt::format("cannot make {}{}{}", path, kPartial, ::getpid()));
}

NewFile::~NewFile() {
  if (fd_.valid() && !published_) ::unlinkat(parent_.get(), partial_name_.c_str(), 0);
}

Status NewFile::publish() {
  ELIXIR_CHECK(!published_, "{} is published twice", name_);
  ELIXIR_RETURN_IF_ERROR(sync_file(fd_.get()));
  ELIXIR_RETURN_IF_ERROR(rename_to_new(parent_.get(), partial_name_, name_));
  published_ = true;
  return sync_folder(parent_.get());
}

}  // namespace elixir::checkpoints
