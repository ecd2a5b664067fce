/* Recipes from JSON in memory, and their tables of keys. */
#ifndef WN_TRAIN_RECIPE_H
#define WN_TRAIN_RECIPE_H

#include <jansson.h>

#include "base/fields.h"
#include "model/config.h"
#include "winnow/train.h"

/* The values of train.tune, by wn_tune_kind; NULL-terminated. */
extern const char *const wn_tune_names[];

#define WN_RECIPE_GROUPS_MAX (WN_MODEL_FIELD_GROUPS_MAX + 2)
/* Fills out [WN_RECIPE_GROUPS_MAX] with the tables of all keys of a wn_recipe; returns their number. */
int wn_recipe_groups(struct wn_field_group *out);

/* wn_recipe_load from a JSON object; messages name it `where`. The sets change the object. */
wn_status wn_recipe_read(wn_context *ctx, const char *where, json_t *object, const char *const *sets, int set_count,
                         wn_recipe *out);
/* Checks each key and value of a recipe by itself, without dependencies between keys. */
wn_status wn_recipe_check_json(wn_context *ctx, const char *where, json_t *object);

#endif
