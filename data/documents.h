// documents.h - files, folders and standard input as a stream of documents in bounded pieces.
// A document is one text file, one line of a .jsonl file, or the text between two separators.
// Text is passed on as it is: no line ends, byte-order marks or encodings are touched.
#pragma once

#include "gpt/tokenizer.h"

typedef struct DocumentsOptions {
    const char *const *inputs;  // files, folders (all text files in them, by name), "-" for stdin
    int n_inputs;
    const char *separator;        // splits text files into documents and is dropped, or NULL
    const char *const *val_docs;  // globs for file names or paths that go to validation
    int n_val_docs;
    double val_fraction;  // of the documents, or of the text when there is one document only
    uint64_t seed;
    const char *skip;           // a folder to leave out when it lies in an input folder, or NULL
    const char *copy_stdin_to;  // folder for a copy of standard input that can be read twice and
                                // whose size is known, or NULL: read it once, as it comes
} DocumentsOptions;

typedef struct InputFile {
    char *path, *name;  // to open; to show. Owned
    int64_t bytes;      // -1 when unknown
    bool is_jsonl, is_val, is_stdin, is_copy;
} InputFile;

typedef struct Documents {
    DocumentsOptions o;
    InputFile *files;
    int n_files, cap;
    int n_binary;       // files of folders left out because they hold no text
    int64_t val_start;  // where validation starts in the only document, or -1
} Documents;

// Lists the inputs. False with a sentence: a file that is missing, unreadable or packed, a folder
// without text, a name in val_docs that no file has. Free in both cases.
bool documents_list(Documents *d, const DocumentsOptions *o, Error *err);
void documents_free(Documents *d);

// A piece of a document in memory of its own.
typedef struct DocPart {
    char *text;     // (n) NULL: there are no more documents
    size_t n, end;  // bytes `end`..n are the text behind this part, as tokenizer_cut saw it
    bool starts;    // the first part of its document
    bool is_jsonl;  // the text is a whole line of JSON
    bool is_val;
    const char *name;  // of the file
    int64_t line;      // in a .jsonl file, from 1
} DocPart;

typedef struct DocReader DocReader;

// One pass over all documents; tok says where text may be cut. d and tok must outlive the reader.
DocReader *doc_reader_open(const Documents *d, const Tokenizer *tok);
// False with a sentence when a file cannot be read. part->text belongs to the caller (mem_free).
bool doc_reader_next(DocReader *r, DocPart *part, Error *err);
int64_t doc_reader_bytes(const DocReader *r);  // read so far
int64_t doc_reader_empty(const DocReader *r);  // empty text documents passed over
void doc_reader_close(DocReader *r);
