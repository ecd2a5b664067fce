/* Learning-rate schedules. */
#ifndef WN_TRAIN_SCHEDULE_H
#define WN_TRAIN_SCHEDULE_H

#include "winnow/train.h"

/* The rate of optimizer step `step`, counted from 1. Steps past the end keep the last rate. */
double wn_schedule_lr(const wn_train_config *config, int64_t step);

#endif
