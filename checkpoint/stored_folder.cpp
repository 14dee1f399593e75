#include "checkpoint/stored_folder.h"
