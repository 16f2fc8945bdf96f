// config_table.h - what a row of the settings table is, and how to read and write a setting by row.
// Only gpt/config_*.c and their tests include this; everybody else reads the Config struct.
#pragma once

#include "gpt/config.h"

typedef enum SettingType {
    SETTING_BOOL,
    SETTING_INT,      // int
    SETTING_I64,      // int64_t, below 2^53 so that a JSON number holds it
    SETTING_F64,      // double
    SETTING_WORD,     // int, one of `words`
    SETTING_VARIANT,  // text, the name of a row of attention_table
    SETTING_TEXT      // text
} SettingType;

enum { OPEN_MIN = 1, OPEN_MAX = 2 };  // Setting.open: the bound itself is not allowed

typedef struct Word {
    const char *word;
    int value;
} Word;

typedef struct Setting {
    const char *key;  // "optim.matrix.lr"; the part before the first dot is the section
    SettingType type;
    size_t offset, size;  // in Config; size of text with its NUL
    double initial;       // default of numbers, booleans and words
    const char *initial_text;
    double min, max;
    int open;
    const Word *words;  // up to {NULL, 0}
    bool fixed;         // must not change when a run is resumed
    // Used only while the setting needs_key holds one of needs_words ("cosine|linear"); anything
    // but the default is then refused. NULL: always used.
    const char *needs_key, *needs_words;
    const char *help;
} Setting;

extern const Setting config_table[];
extern const int config_table_n;

// The row of that key, or NULL.
const Setting *setting_find(const char *key);
// True when rows begin with "prefix.": it names a section or a group.
bool setting_is_section(const char *prefix);
// Writes the sentence that no setting is called `key`, naming the nearest one of its section.
bool setting_unknown(const char *key, const char *where, Error *err);

bool setting_is_text(const Setting *s);
// Booleans, integers, words and reals as a double, which holds each of them exactly.
double setting_number(const Setting *s, const Config *c);
const char *setting_text(const Setting *s, const Config *c);
// Store without checks; setting_default stores the default.
void setting_store(const Setting *s, Config *c, double value);
void setting_default(const Setting *s, Config *c);
bool setting_equal(const Setting *s, const Config *a, const Config *b);
bool setting_is_default(const Setting *s, const Config *c);
// Whether the setting has an effect in c, by needs_key.
bool setting_in_use(const Setting *s, const Config *c);

// Checked writes; `where` opens the sentence when the value does not fit.
bool setting_set_number(const Setting *s, Config *c, double value, const char *where, Error *err);
bool setting_set_text(const Setting *s, Config *c, const char *text, const char *where, Error *err);
// The sentence "where: key should be ..., found ...".
bool setting_refuse(const Setting *s, const char *where, const char *found, Error *err);

// "an integer from 1 to 8", "one of a, b".
void setting_expected(Buf *out, const Setting *s);
// The value as a user writes it in an override.
void setting_format(Buf *out, const Setting *s, const Config *c);
// The fewest digits that read back as the same number.
void buf_number(Buf *out, double x);
