#pragma once

// The cache of the Hugging Face hub. A model is a folder models--ORG--NAME there. Each of its
// snapshots/HASH/FILE is a symbolic link to one of its blobs. (huggingface_hub, guide "Understand
// caching".)

#include <string>

#include "base/fd.h"
#include "base/status.h"

namespace elixir::checkpoints {

// Opens a file, which is a symbolic link, for reading. The link and all links behind it must stay
// inside the cache's folder of the model. The kernel checks each of them while it follows them.
// `folder`: an open folder. `name`: as is_file_name() allows. kBadInput, without the name: the
// folder is no snapshot of the cache, or the link leaves the cache, loops, or leads to nothing.
Result<UniqueFd> open_cache_link(int folder, const std::string& name);

// The snapshot in a model's folder of the cache: the one of the branch main, else any that has a
// config.json. "" if `model` is no such folder or has no snapshot.
std::string snapshot_of(const std::string& model);

// The way to get a folder that does not exist, if `name` can be a model on the hub ("ORG/NAME" or
// "NAME"). If the cache has the model, from there, else with a download. The text begins with "; ".
// It is "" if no model of the hub can have this name.
std::string missing_folder_remedy(const std::string& name);
// Returns `status`, with that remedy behind it if `path` does not exist.
Status with_download(const Status& status, const std::string& path);

}  // namespace elixir::checkpoints
