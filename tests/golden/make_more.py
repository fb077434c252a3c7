"""Makes bert_hf, clip_hf, clip_openai, vit_dinov2 and torch_files: tiny checkpoints and what torch makes of them.

Run where torch, timm, transformers and openai-clip are installed: python tests/golden/make_more.py
Versions used: torch 2.13.0, timm 1.0.30, transformers 5.22.2, openai-clip 1.0.1.
Images are [B, H, W, 3] float32, already normalised.
"""

import collections
import pathlib

import numpy as np
import torch
from clip.model import CLIP
from safetensors.torch import save_file
from timm.models.vision_transformer import VisionTransformer
from transformers import BertConfig, BertModel, CLIPConfig, CLIPModel

HERE = pathlib.Path(__file__).parent


def randomise(model):
    """Weights large enough that a wrong layer shows in the output."""
    torch.manual_seed(0)
    for name, tensor in model.state_dict().items():
        if tensor.is_floating_point():
            norm = "norm" in name.lower() or ".ln_" in name
            centre = 1.0 if norm and name.endswith("weight") else 0.0
            tensor.copy_(centre + 0.2 * torch.randn(tensor.shape))
    return model.eval()


def images(size):
    values = np.random.default_rng(0).normal(size=(2, size, size, 3)).astype(np.float32)
    return values, torch.from_numpy(values.transpose(0, 3, 1, 2).copy())


def tokens(vocabulary, length):
    """Start, words, end, zeros; in CLIP's order of ids."""
    ids = np.zeros((3, length), np.int64)
    for row, count in zip(ids, (1, 5, length - 2), strict=True):
        words = np.random.default_rng(count).integers(1, vocabulary - 2, count)
        row[: count + 2] = [vocabulary - 2, *words, vocabulary - 1]
    return ids


def save(folder, **arrays):
    arrays = {k: v.detach().numpy() if isinstance(v, torch.Tensor) else v for k, v in arrays.items()}
    np.savez(HERE / folder / "io.npz", **arrays)


def bert_hf():
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64}
    model = randomise(BertModel(BertConfig(vocab_size=64, max_position_embeddings=40, **sizes)))
    model.save_pretrained(HERE / "bert_hf")
    ids = tokens(64, 20)
    mask = torch.from_numpy(ids != 0)
    hidden = model(torch.from_numpy(ids), attention_mask=mask.long()).last_hidden_state
    weights = mask[:, :, None].float()
    save("bert_hf", input_ids=ids, features=(hidden * weights).sum(1) / weights.sum(1), last_hidden_state=hidden)


def clip_hf():
    shared = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64}
    text = {**shared, "vocab_size": 64, "max_position_embeddings": 20, "eos_token_id": 63, "bos_token_id": 62}
    config = CLIPConfig(
        text_config=text, vision_config={**shared, "image_size": 32, "patch_size": 16}, projection_dim=16
    )
    model = randomise(CLIPModel(config))
    model.save_pretrained(HERE / "clip_hf")
    ids, (array, tensor) = tokens(64, 20), images(32)
    seen = model.visual_projection(model.vision_model(tensor).pooler_output)
    read = model.text_projection(model.text_model(torch.from_numpy(ids)).pooler_output)
    save("clip_hf", images=array, image_features=seen, input_ids=ids, text_features=read)


def clip_openai():
    """A TorchScript archive, as OpenAI publishes them."""
    model = randomise(CLIP(16, 32, 1, 64, 16, 20, 64, 64, 1, 1))
    ids, (array, tensor) = tokens(64, 20), images(32)
    (HERE / "clip_openai").mkdir(exist_ok=True)
    text = torch.from_numpy(ids)
    torch.jit.trace(model, (tensor, text)).save(HERE / "clip_openai" / "ViT.pt")
    seen, read = model.encode_image(tensor), model.encode_text(text)
    save("clip_openai", images=array, image_features=seen, input_ids=ids, text_features=read)


def vit_dinov2():
    model = randomise(
        VisionTransformer(
            img_size=28, patch_size=14, embed_dim=32, depth=2, num_heads=4, init_values=1.0, num_classes=0
        )
    )
    (HERE / "vit_dinov2").mkdir(exist_ok=True)
    save_file(model.state_dict(), HERE / "vit_dinov2" / "model.safetensors")
    array, tensor = images(28)
    save("vit_dinov2", images=array, features=model(tensor))


def torch_files():
    """One state dict in both of torch's formats, with views, shared storages and every usual type."""
    folder = HERE / "torch_files"
    folder.mkdir(exist_ok=True)
    base = torch.arange(24, dtype=torch.float32).reshape(4, 6)
    state = collections.OrderedDict(
        base=base,
        transposed=base.T,
        part=base[1:3, ::2],
        half=base.half() / 7,
        bfloat16=base.bfloat16() / 7,
        double=base.double() / 7,
        count=torch.tensor(3),
        flags=torch.tensor([True, False]),
        empty=torch.zeros(0, 5),
    )
    state["parameter"] = torch.nn.Parameter(base + 1)
    state._metadata = {"": {"version": 1}}
    for name, zipped in (("zip.pt", True), ("legacy.pt", False)):
        torch.save({"epoch": 3, "state_dict": state}, folder / name, _use_new_zipfile_serialization=zipped)
    np.savez(folder / "expected.npz", **{k: v.detach().double().numpy() for k, v in state.items()})


if __name__ == "__main__":
    with torch.no_grad():
        bert_hf()
        clip_hf()
        clip_openai()
        vit_dinov2()
        torch_files()
