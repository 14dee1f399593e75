#include "checkpoint/new_folder.h"
