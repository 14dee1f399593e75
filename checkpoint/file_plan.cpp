#include "checkpoint/file_plan.h"
