/* Schedules of the learning rate, of budgets and of L_mem. */
#ifndef WN_TRAIN_SCHEDULE_H
#define WN_TRAIN_SCHEDULE_H

#include "winnow/train.h"

/* The rate of optimizer step `step`, counted from 1. Steps past the end keep the last rate. */
double wn_schedule_lr(const wn_train_config *config, int64_t step);
double wn_schedule_muon_lr(const wn_train_config *config, int64_t step); /* of Muon's matrices, with the same shape */

/* A layer's budget at optimizer step `step`, counted from 1, on its way from the context to `budget`. */
int64_t wn_schedule_budget(const wn_train_config *config, int64_t context, int64_t budget, int64_t step);
/* With train.prune.draw: a budget drawn for the step, between that one and the context. */
int64_t wn_schedule_budget_drawn(const wn_train_config *config, int64_t context, int64_t budget, int64_t step);
/* The factor of L_mem's eps at optimizer step `step`, counted from 1: 0 to 1. */
double wn_schedule_memory_loss(const wn_train_config *config, int64_t step);

#endif
