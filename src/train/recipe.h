/* Recipes from JSON that is already in memory. */
#ifndef WN_TRAIN_RECIPE_H
#define WN_TRAIN_RECIPE_H

#include <jansson.h>

#include "base/fields.h"
#include "model/config.h"
#include "winnow/train.h"

/* train.tune's, by wn_tune_kind; NULL ends them. */
extern const char *const wn_tune_names[];

#define WN_RECIPE_GROUPS_MAX (WN_MODEL_FIELD_GROUPS_MAX + 2)
/* The tables of all keys over wn_recipe, into out [WN_RECIPE_GROUPS_MAX]; their number. */
int wn_recipe_groups(struct wn_field_group *out);

/* As wn_recipe_load, from an object; messages name it `where`. The sets change the object. */
wn_status wn_recipe_read(wn_context *ctx, const char *where, json_t *object, const char *const *sets, int set_count,
                         wn_recipe *out);
/* Are its keys and values alone those of a recipe? What joins several is not looked at. */
wn_status wn_recipe_check_json(wn_context *ctx, const char *where, json_t *object);

#endif
