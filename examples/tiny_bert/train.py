"""Train a tiny BERT to classify headlines, with Hugging Face's Trainer, offline.

python train.py                                    # alone
holdfast-worker run --nproc-per-node 2 train.py    # as in a job
"""

import argparse
import sys
from pathlib import Path

import torch
from headlines import KINDS, headlines
from holdfast_worker.huggingface import HoldfastCallback
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors, trainers
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    PreTrainedTokenizerFast,
    Trainer,
    TrainingArguments,
    set_seed,
)

LONGEST = 32
"""Tokens of one input; the longest headline has fewer."""

SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")


def tokenizer_of(texts: list[str]) -> PreTrainedTokenizerFast:
    """A tokenizer trained on these texts, because none can be downloaded offline."""
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    special = list(SPECIAL)
    tokenizer.train_from_iterator(texts, trainers.WordPieceTrainer(special_tokens=special))
    ends = [(token, tokenizer.token_to_id(token)) for token in ("[SEP]", "[CLS]")]
    tokenizer.post_processor = processors.BertProcessing(*ends)
    names = ("pad_token", "unk_token", "cls_token", "sep_token", "mask_token")
    roles = dict(zip(names, SPECIAL, strict=True))
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, **roles)


def tiny_bert(vocabulary: int) -> BertForSequenceClassification:
    """Two layers, 64 wide: about 200,000 parameters."""
    config = BertConfig(
        vocab_size=vocabulary,
        hidden_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=256,
        max_position_embeddings=256,
        id2label=dict(enumerate(KINDS)),
        label2id={kind: number for number, kind in enumerate(KINDS)},
    )
    return BertForSequenceClassification(config)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--subset", type=int, default=2000, help="headlines to train on")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--out", default="./tiny_out", help="where the first rank saves")
    args = parser.parse_args()

    set_seed(42)
    data = headlines(args.subset)
    tokenizer = tokenizer_of([text for text, _ in data])
    encoded = tokenizer([text for text, _ in data], padding="max_length", max_length=LONGEST)
    rows = [
        {"input_ids": ids, "attention_mask": mask, "labels": number}
        for ids, mask, (_, number) in zip(
            encoded["input_ids"], encoded["attention_mask"], data, strict=True
        )
    ]

    holdfast = HoldfastCallback()
    trainer = Trainer(
        tiny_bert(len(tokenizer)),
        TrainingArguments(
            args.out,
            num_train_epochs=args.epochs,
            per_device_train_batch_size=16,
            learning_rate=1e-3,
            logging_steps=10,
            save_strategy="no",  # Holdfast requests saves.
            ddp_find_unused_parameters=False,
            use_cpu=not torch.cuda.is_available(),
            dataloader_pin_memory=torch.cuda.is_available(),
            report_to="none",
            disable_tqdm=True,
        ),
        train_dataset=rows,
        processing_class=tokenizer,
        callbacks=[holdfast],
    )
    # In one write, so that the lines of two ranks never mix.
    sys.stdout.write(f"[RANK {holdfast.run.rank}] WORLD_SIZE={holdfast.run.world_size}\n")
    sys.stdout.flush()

    trainer.train(resume_from_checkpoint=holdfast.newest)

    if holdfast.run.rank == 0:
        print(f"Saving model to {args.out}")
        trainer.save_model(args.out)
        print("saved:", *sorted(f.name for f in Path(args.out).iterdir() if f.is_file()))


if __name__ == "__main__":
    main()
