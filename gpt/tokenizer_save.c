// tokenizer_save.c - writes a tokenizer.json for Hugging Face's tokenizers and for tokenizer_load.
// Merges are written as "left right", which readers of every age know; as pairs only when a part
// holds a space. Added tokens stand in the vocabulary too, which keeps their ids where there are
// gaps.
#include "gpt/tokenizer.h"
#include "gpt/tokenizer_parts.h"

#include <string.h>

static void quote(Buf *out, const char *text, size_t n) {
    buf_add(out, "\"", 1);
    for (size_t i = 0; i < n; i++) {
        unsigned char c = (unsigned char)text[i];
        if (c == '"' || c == '\\')
            buf_printf(out, "\\%c", c);
        else if (c < 32)
            buf_printf(out, "\\u%04x", c);
        else
            buf_add(out, text + i, 1);
    }
    buf_add(out, "\"", 1);
}

// The text of a token as the vocabulary has it, unquoted.
static void token_text(const Tokenizer *tok, int id, Buf *out) {
    const char *bytes = tok->text.text + tok->start[id];
    size_t n = (size_t)tok->len[id];
    if (tok->flags[id] & TOKEN_MODEL)
        alphabet_write(bytes, n, out);
    else
        buf_add(out, bytes, n);
}

static void quote_token(const Tokenizer *tok, int id, Buf *out) {
    Buf text = {0};
    token_text(tok, id, &text);
    quote(out, text.text, text.n);
    buf_free(&text);
}

static void write_added(const Tokenizer *tok, Buf *out) {
    const char *comma = "";
    buf_printf(out, "  \"added_tokens\": [");
    for (int id = 0; id < tok->n_ids; id++) {
        if (!(tok->flags[id] & TOKEN_ADDED)) continue;
        buf_printf(out, "%s\n    {\"id\": %d, \"content\": ", comma, id);
        quote(out, tok->text.text + tok->start[id], (size_t)tok->len[id]);
        buf_printf(out,
                   ", \"single_word\": false, \"lstrip\": false, \"rstrip\": false, "
                   "\"normalized\": false, "
                   "\"special\": %s}",
                   tok->flags[id] & TOKEN_SPECIAL ? "true" : "false");
        comma = ",";
    }
    buf_printf(out, "\n  ],\n");
}

static void write_byte_level(Buf *out, bool use_regex) {
    buf_printf(out,
               "{\"type\": \"ByteLevel\", \"add_prefix_space\": false, \"trim_offsets\": true, "
               "\"use_regex\": %s}",
               use_regex ? "true" : "false");
}

static void write_splitting(const Tokenizer *tok, Buf *out) {
    buf_printf(out, "  \"normalizer\": null,\n  \"pre_tokenizer\": ");
    if (tok->split == SPLIT_GPT2) {
        write_byte_level(out, true);
    } else {
        const char *regex = split_regex(tok->split);
        buf_printf(out, "{\"type\": \"Sequence\", \"pretokenizers\": [\n    {\"type\": \"Split\", "
                        "\"pattern\": {\"Regex\": ");
        quote(out, regex, strlen(regex));
        buf_printf(out, "}, \"behavior\": \"Isolated\", \"invert\": false},\n    ");
        write_byte_level(out, false);
        buf_printf(out, "]}");
    }
    buf_printf(out, ",\n  \"post_processor\": null,\n  \"decoder\": ");
    write_byte_level(out, true);
    buf_printf(out, ",\n");
}

static bool merges_hold_spaces(const Tokenizer *tok) {
    for (int i = 0; i < tok->n_merges; i++) {
        const int side[2] = {tok->merges[i].left, tok->merges[i].right};
        for (int k = 0; k < 2; k++) {
            bool model = tok->flags[side[k]] & TOKEN_MODEL;
            if (!model &&
                memchr(tok->text.text + tok->start[side[k]], ' ', (size_t)tok->len[side[k]])) {
                return true;
            }
        }
    }
    return false;
}

static void write_merges(const Tokenizer *tok, Buf *out) {
    bool pairs = merges_hold_spaces(tok);
    buf_printf(out, "    \"merges\": [");
    for (int i = 0; i < tok->n_merges; i++) {
        buf_printf(out, i ? ",\n      " : "\n      ");
        if (pairs) {
            buf_add(out, "[", 1);
            quote_token(tok, tok->merges[i].left, out);
            buf_add(out, ", ", 2);
            quote_token(tok, tok->merges[i].right, out);
            buf_add(out, "]", 1);
        } else {
            Buf both = {0};
            token_text(tok, tok->merges[i].left, &both);
            buf_add(&both, " ", 1);
            token_text(tok, tok->merges[i].right, &both);
            quote(out, both.text, both.n);
            buf_free(&both);
        }
    }
    buf_printf(out, "%s]\n", tok->n_merges ? "\n    " : "");
}

static void write_model(const Tokenizer *tok, Buf *out) {
    buf_printf(
        out,
        "  \"model\": {\n    \"type\": \"BPE\", \"dropout\": null, \"unk_token\": null, "
        "\"continuing_subword_prefix\": null,\n    \"end_of_word_suffix\": null, \"fuse_unk\": "
        "false, \"byte_fallback\": false, \"ignore_merges\": %s,\n    \"vocab\": {",
        tok->ignore_merges ? "true" : "false");
    const char *comma = "";
    for (int id = 0; id < tok->n_ids; id++) {
        if (!tok->len[id]) continue;
        buf_printf(out, "%s\n      ", comma);
        quote_token(tok, id, out);
        buf_printf(out, ": %d", id);
        comma = ",";
    }
    buf_printf(out, "\n    },\n");
    write_merges(tok, out);
    buf_printf(out, "  }\n");
}

bool tokenizer_save(const Tokenizer *tok, const char *path, Error *err) {
    Buf out = {0};
    buf_printf(&out, "{\n  \"version\": \"1.0\",\n  \"truncation\": null,\n  \"padding\": null,\n");
    write_added(tok, &out);
    write_splitting(tok, &out);
    write_model(tok, &out);
    buf_printf(&out, "}\n");
    bool ok = file_write_atomic(path, out.text, out.n, err);
    buf_free(&out);
    return ok;
}
