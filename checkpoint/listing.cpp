#include "checkpoint/listing.h"
