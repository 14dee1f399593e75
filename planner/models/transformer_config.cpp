#include "planner/models/transformer_config.h"
