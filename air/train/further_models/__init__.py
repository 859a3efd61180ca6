"""The further models that algorithms use besides the policy (the model that is trained): a reference model, a
value model, a teacher."""
