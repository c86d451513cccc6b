"""Who gets the advantage: scorers give each token an importance, the gate turns it into weights."""
